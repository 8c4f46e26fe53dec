"""A language model learns to write like a licence: LoRA with Transformers, PEFT and Accelerate.

    upshift run examples/lora/pipeline.py
    upshift report latest

Nothing is downloaded. A small Llama is made from a configuration, and learns English from the pages of this
project's documentation. Then two processes fine-tune it on the licence, which it has never seen: what they
train and save is the adapter. With GPUs each process gets one of its own. Models and texts come in by name;
they have to where this file is copied out of the project, whose texts these are:

    upshift run examples/lora/pipeline.py --param base=Qwen/Qwen3-0.6B --param text=novel.txt
    upshift run pipeline.py --param pages=my_notes --param text=novel.txt
"""

import tempfile
import warnings
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

import upshift
from upshift import ResourceSettings, pipeline, run_with_accelerate, step

warnings.filterwarnings("ignore", "`is_gradient_checkpointing`")  # by which PEFT asks Transformers
PROJECT = Path(__file__).parent.parent.parent
LENGTH = 64
"""Tokens that a model reads at a time."""


def rows(tokenizer: Any, text: str) -> torch.Tensor:
    """The tokens of a text, in rows of ``LENGTH``; what does not fill the last one is left out."""
    tokens = tokenizer(text, verbose=False)["input_ids"]
    return torch.tensor(tokens[: len(tokens) // LENGTH * LENGTH]).view(-1, LENGTH)


def fit(model: Any, data: torch.Tensor, *, epochs: int, batch: int, rate: float) -> Any:
    """Train what is trainable of a model: the usual loop of Accelerate, for one process and for many."""
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for number, tokens in enumerate(chain.from_iterable(repeat(loader, epochs))):
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), reduction="mean").item()
        if accelerator.is_main_process:
            upshift.log(step=number, loss=mean)
    model = accelerator.unwrap_model(model)
    accelerator.end_training()
    return model


@step
def split(text: Path, held_out: float) -> tuple[Annotated[str, "train"], Annotated[str, "test"]]:
    whole = text.read_text(encoding="utf-8")
    end = int(len(whole) * (1 - held_out))
    return whole[:end], whole[end:]


# A folder with a tokenizer and a model that knows a little English, as those of the Hub are.
@step(settings={"resources": ResourceSettings(cpu_count=1)})
def pretrain(pages: Path) -> Path:
    set_seed(0)
    english = "\n".join(page.read_text(encoding="utf-8") for page in sorted(pages.glob("*.md")))
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    pieces.train_from_iterator([english], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<|end|>")

    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4 * LENGTH,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = AutoModelForCausalLM.from_config(shape)
    model = fit(model, rows(tokenizer, english), epochs=3, batch=16, rate=5e-3)

    folder = Path(tempfile.mkdtemp()) / "base"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@step(settings={"resources": ResourceSettings(cpu_count=2)})
def finetune(base: Path | str, text: str, epochs: int, rate: float) -> Path:
    set_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base)
    lora = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    data = rows(AutoTokenizer.from_pretrained(base), text)
    model = fit(get_peft_model(model, lora), data, epochs=epochs, batch=4, rate=rate)

    folder = Path(tempfile.mkdtemp()) / "adapter"
    if upshift.current.rank == 0:  # what it returns is the step's output
        model.save_pretrained(folder)
    return folder


on_two_cpus = run_with_accelerate(num_processes=2, cpu=True)(finetune)
on_two_gpus = run_with_accelerate(num_processes=2, multi_gpu=True)(finetune)


# How well each predicts the end of the text, which neither has learned from; and what each writes.
@step
def compare(
    base: Path | str, adapter: Path, text: str
) -> tuple[Annotated[float, "before"], Annotated[float, "after"]]:
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    data, start = rows(tokenizer, text), tokenizer("The Licensor", return_tensors="pt")

    def ask(name: str) -> float:
        with torch.inference_mode():
            loss: float = model(input_ids=data, labels=data).loss.item()
            written = model.generate(
                **start, max_new_tokens=40, do_sample=False, pad_token_id=tokenizer.eos_token_id
            )
        print(f"{name} the adapter: loss {loss:.2f}")
        upshift.current.card.append(f"```\n{tokenizer.decode(written[0])}\n```", title=f"{name} the adapter")
        return loss

    with model.disable_adapter():
        before = ask("without")
    return before, ask("with")


@pipeline
def lora(
    base: str | None = None,
    pages: Path = PROJECT / "docs/how-to",
    text: Path = PROJECT / "LICENSE",
    epochs: int = 8,
    rate: float = 5e-3,
    gpus: bool = torch.cuda.device_count() > 0,
) -> tuple[float, float]:
    beginning, end = split(text, held_out=0.2)
    model = base or pretrain(pages)
    adapter = (on_two_gpus if gpus else on_two_cpus)(model, beginning, epochs, rate)
    return compare(model, adapter, end)


if __name__ == "__main__":
    before, after = lora().output
    print(f"loss on text that it has not seen: {before:.2f} before, {after:.2f} after")
