"""Hugging Face Trainer on a tiny random Llama; checkpoints and resumes by the Trainer's own flags."""
import sys

import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Arithmetic(Dataset):
    def __init__(self, n=512, length=16, vocab=64):
        g = torch.Generator().manual_seed(8)
        start = torch.randint(vocab, (n, 1), generator=g)
        stride = torch.randint(1, 5, (n, 1), generator=g)
        self.ids = (start + stride * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i].clone()}


class MyTrainer(Trainer):
    pass


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    args.disable_tqdm, args.report_to = True, []
    set_seed(args.seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, attention_dropout=0.1))
    trainer = MyTrainer(model=model, args=args, train_dataset=Arithmetic())
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    sys.argv += ["--use_cpu", "--ddp_backend", "gloo", "--per_device_train_batch_size", "8", "--learning_rate", "5e-3",
                 "--logging_steps", "5", "--warmup_steps", "4", "--lr_scheduler_type", "linear"]
    main()
