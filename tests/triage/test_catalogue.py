"""The catalogue is data, and every entry proves itself by its sample."""

from __future__ import annotations

import pytest

from ddaudit.errors import PackProblem
from ddaudit.triage.catalogue import load_catalogue

CATALOGUE = load_catalogue()


@pytest.mark.parametrize("signature", CATALOGUE.signatures, ids=lambda s: s.id)
def test_a_sample_matches_its_own_entry_and_no_other(signature):
    assert [s.id for s, _ in CATALOGUE.match(signature.sample)] == [signature.id]


def test_every_literal_stands_in_lines_that_the_expression_can_match():
    for signature in CATALOGUE.signatures:
        assert any(literal in signature.sample for literal in signature.find), signature.id


def test_every_cause_has_a_first_action():
    assert len(CATALOGUE.causes) == 48
    assert all(cause.title and cause.do_now for cause in CATALOGUE.causes.values())


def test_only_causes_of_broken_hardware_tell_to_return_it():
    for cause in CATALOGUE.causes.values():
        if "RMA" in cause.do_now + cause.then:
            assert cause.id.startswith("gpu."), cause.id


def test_a_pack_adds_causes_and_signatures(tmp_path):
    (tmp_path / "triage").mkdir()
    (tmp_path / "triage" / "ours.toml").write_text(
        '[[cause]]\nid = "site.license"\ntitle = "No licence"\ndo_now = "Call procurement."\n'
        '[[signature]]\nid = "site-license"\ncause = "site.license"\nrole = "root"\nlayer = "app"\n'
        'find = ["LICENSE EXPIRED"]\n'
        'regex = "LICENSE EXPIRED"\nsample = "LICENSE EXPIRED"\nmeans = "The licence ran out."\n'
    )
    wider = load_catalogue([tmp_path])
    assert [s.id for s, _ in wider.match("x LICENSE EXPIRED y")] == ["site-license"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[signature]\n", "does not parse"),
        ('[[signature]]\nid = "x"\n', "missing"),
        (
            '[[signature]]\nid = "x"\ncause = "no.such"\nrole = "root"\nlayer = "app"\nfind = ["x"]\nregex = "x"\n'
            'sample = "x"\nmeans = "x"\n',
            "unknown cause",
        ),
    ],
)
def test_a_wrong_table_is_named_with_its_file(tmp_path, text, says):
    (tmp_path / "triage").mkdir()
    (tmp_path / "triage" / "bad.toml").write_text(text)
    with pytest.raises(PackProblem, match=says) as problem:
        load_catalogue([tmp_path])
    assert "bad.toml" in str(problem.value)


def test_the_prefilter_finds_every_sample_in_one_block():
    matcher = CATALOGUE.matcher()
    block = "\n".join(s.sample.splitlines()[0] for s in CATALOGUE.signatures).encode()
    found = {s.id for literal, _, _ in matcher.find(block) for s in matcher.owners[literal]}
    assert found == set(CATALOGUE.by_id)
