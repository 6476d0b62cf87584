"""Models of Megatron-LM's multimodal example: a decoder of the stated shape behind an encoder of images.

Read at NVIDIA/Megatron-LM 00caa53 (`examples/multimodal/config.py`, `model.py`, `multimodal_args.py`) and
FlagOpen/FlagScale a43d7a6 (`flagscale/train/models/llava_onevision/config.py`), which builds on it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.logs import note_samples
from simulator.frameworks.models import of_parts
from simulator.question.recipe import Recipe

_FLAGS: Final = (
    *("img_h", "img_w", "patch_dim", "freeze_lm", "freeze_vit", "decoder_seq_length", "recompute_vision"),
    "disable_vision_class_token",
)


class _Network(NamedTuple):
    """Sizes of an encoder."""

    layers: int
    width: int
    inner: int
    heads: int
    of_head: int
    """Width of a head; 0 for that of the language model's."""


_ENCODERS: Final = {
    "clip": _Network(24, 1024, 4096, 16, 64),
    "siglip": _Network(27, 1152, 4304, 16, 72),
    "internvit": _Network(45, 3200, 12800, 25, 0),
    "internvit300M": _Network(24, 1024, 4096, 16, 64),
    "radio": _Network(32, 1280, 5120, 16, 80),
    "cradio-g": _Network(40, 1536, 6144, 24, 64),
}
"""Encoders of `--vision-model-type` (`get_vision_model_config`)."""
_PROJECTORS: Final = {
    "llama3_8b": 14336,
    "llama3.1_8b": 4096,
    "llama3.2_1b": 2048,
    "mistral_7b": 14336,
    "yi-34b": 20480,
    "qwen2.0_72B": 29568,
    "qwen2.5_7B": 3584,
    "qwen2.5_72B": 29568,
    "qwen2_7b": 3584,
    "qwen2.5_7b": 3584,
    "qwen2_1.5b": 1536,
    "qwen2.5_1.5b": 1536,
}
"""Width within the projector of `--language-model-type` (`get_vision_projection_config`)."""


def with_encoder(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run with the encoder that flags name: on the first stage, its images as many as a sequence holds."""
    kind, layout = arguments.text("model", "language_model_type"), run.layout
    seen = arguments.text("encoder", "vision_model_type") or "clip"
    if kind is None or kind not in _PROJECTORS or seen not in _ENCODERS or layout is None:
        if kind is not None or arguments.has(*_FLAGS):
            message = "vision models are not priced, but a decoder behind an encoder that examples/multimodal knows"
            arguments.not_modelled(message, "language_model_type", "vision_model_type", *_FLAGS)
        return run
    width, height, patch = (arguments.integer("encoder", name) for name in ("img_w", "img_h", "patch_dim"))
    if width != height or width is None or patch is None:
        arguments.not_modelled("tiles of images that are not square are not priced", "img_h", "img_w", "patch_dim")
        return run
    fields, network = {**run.shape, **run.model_fields}, _ENCODERS[seen]
    heads, hidden = int(str(fields.get("num_attention_heads", 1))), int(str(fields.get("hidden_size", 1)))
    tensor = layout.tensor_parallel
    of_all = (24 // tensor + 1) * tensor * (hidden // heads) if not network.of_head else network.heads * network.of_head
    sizes = {"L": network.layers, "h": network.width, "i": network.inner, "q": of_all, "p": patch, "e": width}
    sizes |= {"g": 2 if arguments.switch("encoder", "pixel_shuffle") else 1, "o": hidden, "f": _PROJECTORS[kind]}
    trained = not arguments.switch("encoder", "freeze_vit")
    again = arguments.switch("recompute", "recompute_vision")
    if trained and layout.recompute == "full" and not again:
        arguments.not_modelled("an encoder that keeps what the decoder computes again is not priced", "freeze_vit")
    if tensor > 1:
        message = "the encoder is divided over tensor ranks; each is priced with all of it"
        arguments.remark("upper-bound", "warning", message, "vision_model_type", bound="state")
    length = arguments.integer("seq_length", "decoder_seq_length") or run.seq_length
    if not arguments.has("packing_buffer_size"):
        note_samples(arguments, "decoder_seq_length" if arguments.has("decoder_seq_length") else "seq_length")
    decoder = not arguments.switch("decoder", "freeze_lm")
    run = replace(
        run,
        seq_length=length,
        lora_rank=run.lora_rank if decoder else 1,
        model_fields={**run.model_fields, "encoder": {"kind": "megatron", "sizes": sizes}},
    )
    return of_parts(arguments, run, 0 if trained else None, projector=True, decoder=decoder)
