"""Models of Megatron-LM's multimodal example: a decoder of the stated shape behind an encoder of images.

Read at NVIDIA/Megatron-LM 00caa53 (`examples/multimodal/model.py`, `multimodal_args.py`); `vision.yaml` has the sizes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.logs import note_samples
from simulator.frameworks.models import of_parts
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import read_yaml

_FLAGS: Final = (
    *("img_h", "img_w", "patch_dim", "freeze_lm", "freeze_vit", "decoder_seq_length", "recompute_vision"),
    *("disable_vision_class_token", "language_model_type"),
)


def with_encoder(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run with the encoder that flags name: on the first stage, its images as many as a sequence holds."""
    if run.layout is None or not arguments.has(*_FLAGS):
        return run
    known: Any = read_yaml(Path(__file__).with_name("vision.yaml"))
    inner = known["projectors"].get(arguments.text("model", "language_model_type"))
    network = known["encoders"].get(arguments.text("encoder", "vision_model_type") or "clip")
    width, height, patch = (arguments.integer("encoder", name) for name in ("img_w", "img_h", "patch_dim"))
    if inner is None or network is None or width is None or width != height or patch is None:
        message = "vision models are not priced, but decoders behind encoders of square tiles in examples/multimodal"
        arguments.not_modelled(message, *_FLAGS, "vision_model_type")
        return run
    sizes = dict(zip("Lhi", network, strict=False)) | {"p": patch, "e": width, "f": inner}
    heads, hidden = (int(str(run.shape.get(key, 1))) for key in ("num_attention_heads", "hidden_size"))
    tensor = run.layout.tensor_parallel
    # InternViT's 25 heads are as wide as the decoder's, and padded to a multiple of the tensor ranks.
    all_heads = network[3] * network[4] or (24 // tensor + 1) * tensor * (hidden // heads)
    sizes |= {"q": all_heads, "g": 1 + arguments.switch("encoder", "pixel_shuffle"), "o": hidden}
    trained = not arguments.switch("encoder", "freeze_vit")
    if not arguments.switch("recompute", "recompute_vision") and trained and run.layout.recompute == "full":
        arguments.not_modelled("an encoder that keeps what the decoder computes again is not priced", *_FLAGS[:2])
    if tensor > 1:
        message = "the encoder is divided over tensor ranks; each is priced with all of it"
        arguments.remark("upper-bound", "warning", message, "vision_model_type", bound="state")
    if not arguments.has("packing_buffer_size"):
        note_samples(arguments, "decoder_seq_length" if arguments.has("decoder_seq_length") else "seq_length")
    decoder = not arguments.switch("decoder", "freeze_lm")
    run = replace(
        run,
        seq_length=arguments.integer("seq_length", "decoder_seq_length") or run.seq_length,
        lora_rank=run.lora_rank if decoder else 1,
        model_fields={**run.model_fields, "encoder": {"kind": "megatron", "sizes": sizes}},
    )
    return of_parts(arguments, run, 0 if trained else None, projector=True, decoder=decoder)
