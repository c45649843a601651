"""Watching a user's training script from outside: hooks into torch that record facts and change no result.

``install`` puts the hooks in; ``ddaudit watch`` arranges that every rank does so when it imports torch, and
``import ddaudit.watch.auto`` does so from a script or a notebook. What a rank knows goes to its event file, from which
:class:`~ddaudit.evidence.TrainingTrace` and :class:`~ddaudit.evidence.WatchedScript` are read.
"""
