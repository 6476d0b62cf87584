"""Five figures of every token mixer and every kind of feed-forward network, worked by hand on a small shape.

h 64, f 160, 4 heads of 16 and 2 key-value heads (q 64, k 32), two sequences of 32 tokens in a micro batch. What can be
cut is, over four devices: tensor parallel 2 with sequence parallelism, context parallel 2, experts over 2 x 2. A device
then has T = 32 tokens, half of every width, and 16 tokens between the tensor-parallel regions. Bytes are those of
16-bit training under Megatron's switches, without the norm before and the addition behind; FLOP are of a token of the
whole model in the forward pass, with all s = 32 scores (Megatron's convention).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from simulator.question.specs.model import FeedForward, Mixer, ModelSpec
from tests.memory.test_families import DELTA, INDEX, MAMBA
from tests.memory.test_this_years_mixers import KIMI
from tests.scenario.cases import small_compressed, small_dense, small_mla, small_moe


class Figures(NamedTuple):
    """Of one layer and micro batch on a device, but for the FLOP."""

    saved: float
    """Bytes from the forward pass until the backward pass."""
    temporary: float
    """Bytes of gradients alive inside the widest operation's backward pass."""
    moved: float
    """Bytes that kernels bound by memory read and write in both passes."""
    flop: float
    """Of a token of the whole model, forward."""
    exchanged: float
    """Bytes that a device receives in both passes."""


class ByHand(NamedTuple):
    model: ModelSpec
    figures: Figures
    source: str
    nothing: Mapping[str, str] = {}
    """Why a figure is 0."""
    cut: bool = True
    """Whether the layer is cut over devices."""


SPLIT: dict[str, Any] = {
    "tensor_parallel": 2,
    "sequence_parallel": True,
    "context_parallel": 2,
    "expert_parallel": 2,
    "expert_tensor_parallel": 2,
}
T, s, h, f = 32, 32, 64, 160
REGIONS = 4 * (2 * T * h) / 2
"""A gather before a block and a scatter behind it, mirrored in the backward pass: of 2 T h a rank receives the other's
half (Korthikanti et al. 2022, section 4.2.2)."""
NO_TEMPORARY = "products alone: their gradients are the incoming one and what is saved for it"
NO_MOVED = "products alone, which a roofline times; in 16 bits nothing is cast"

# Attention with shared key-value heads.
# Saved (Korthikanti et al. 2022, section 4.1, with flash attention of Dao 2023): the joint projection's output, a view
# of which v is, 2 (q + 2 k); rotated q and k; what attention puts out, 2 q, and fp32 sums of four heads' rows. Ring
# attention's backward pass starts from keys and values received last (TransformerEngine 2.11,
# pytorch/attention/dot_product_attention/context_parallel.py): 2 (k + v).
PROJECTED, ROTATED, OUTPUT, RING = 2 * 128 / 2, 2 * (64 + 32) / 2, (2 * 64 + 4 * 4) / 2, 2 * (32 + 32) / 2
ATTENTION = T * (PROJECTED + ROTATED + OUTPUT + RING)
# Gradients of q, k and v.
ATTENTION_GRADIENTS = T * 2 * (64 + 32 + 32) / 2
# Rotation reads and writes q and k, twice as much backward. Around the flash kernel's backward pass, a number of q: the
# output and its gradient read (4), the gradient of q cleared (4), added to in fp32 and cast (2 + 4): 14
# (FlashAttention 2.7, csrc/flash_attn/src/flash_bwd_preprocess_kernel.h).
ATTENTION_MOVED = T * (3 * 4 * (64 + 32) / 2 + 14 * 64 / 2)
# q, k, v and output; scores and values of all heads.
ATTENTION_PRODUCTS = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64)
# One other rank's keys and values, of half the heads; twice as much backward, with their gradients.
ATTENTION_RING = 3 * T * 2 * (32 + 32) / 2
WINDOW = {"sliding_window": 4}
# Keys inside a window of 4 before a token, of the 32^2 / 2 that a causal mask leaves: (s w - w^2 / 2) / (s^2 / 2).
IN_WINDOW = (32 * 4 - 4**2 / 2) / (32**2 / 2)
# A rank has two pieces of each of two sequences (causal balance), and needs the 4 tokens before each.
WINDOW_RING = 3 * (2 * 2 * 4) * 2 * (32 + 32) / 2
# Eight keys that an indexer chooses.
CHOSEN = (32 * 8 - 8**2 / 2) / (32**2 / 2)
# Queries of two index heads of 16 and one key, fp32 weights of the heads, eight choices of 4 bytes, on every rank
# (DeepSeek-V3.2-Exp, inference/model.py, `Indexer`).
INDEXED = T * (2 * (2 * 16 + 16) + 4 * 2 + 4 * 8)
# Two convolutions over two tokens, to half the width and back (PaddleNLP 056cdcb, paddlenlp/transformers/yuan/
# modeling.py, LocalizedFiltering), save what they read; the norm behind them saves as every other: input, one number,
# output. Tokens are split over the tensor-parallel ranks.
FILTER_SAVED = T / 2 * (2 * 64 + 2 * 32 + 2 * 64 + 4 + 2 * 64)
# The convolutions read and write 8 h in all, the norm one tensor in and one out; twice as much backward.
FILTER_MOVED = T / 2 * 3 * 2 * (8 + 2) * 64

# Latent attention: ranks 40 and 32, heads of 16 + 8, values of 20.
# DeepSeek-V2 (2024), section 2.1; Megatron-LM core_v0.16.1, transformer/multi_latent_attention.py. Split by tokens:
# both latents with the shared rotary part, their norms' outputs and numbers. Cut by heads: q and k of 24 as the core
# reads them, a copy of v, the output and row sums, the ring's keys and values.
LATENT_SAVED = T * (2 * (40 + 32 + 8) + 2 * (40 + 32) + 4 * 2) / 2
LATENT_CORE = T * (2 * (2 * 4 * 24) + 2 * 4 * 20 + 2 * 4 * 20 + 4 * 4 + 2 * 4 * (24 + 20)) / 2
LATENT_GRADIENTS = T * 2 * (4 * 24 + 4 * 24 + 4 * 20) / 2
LATENT_MOVED = T * (3 * 4 * (2 * 4 * 24) / 2 + 14 * 4 * 20 / 2)
LATENT_PRODUCTS = 2 * (64 * 40 + 40 * 96 + 64 * (32 + 8) + 32 * 4 * (16 + 20) + 80 * 64)
LATENT_CORE_FLOP = 2 * s * (96 + 80)
LATENT_RING = 3 * T * 2 * (96 + 80) / 2

# Experts: 8 of width 48, 2 a token, a shared one.
# Copies on a device: 16 tokens of its own, 2 each, gathered over the expert's 2 tensor-parallel ranks.
R = 16 * 2 * 2
# megatron-core 0.12, transformer/moe: the router's fp32 logits and probabilities of 8; copies on their way in and out;
# gate and up of half the width, and their product; the shared expert's of all tokens.
EXPERTS_SAVED = 16 * 2 * 4 * 8 + R * (2 * 2 * 64 + (4 + 2) * 48 / 2) + T * (4 + 2) * 48 / 2
# Gradients of gate and up, beside those of what goes in and comes out.
EXPERTS_GRADIENTS = R * (4 * 48 / 2 + 2 * 2 * 64)
# Copies permuted and back again, 10 h a copy forward (token_dispatcher.py, MoEAlltoAllTokenDispatcher); SwiGLU 6 f.
EXPERTS_MOVED = 3 * (R * (10 * 64 + 6 * 48 / 2) + T * 6 * 48 / 2)
EXPERTS_FLOP = 2 * (64 * 8 + 2 * 3 * 64 * 48 + 3 * 64 * 48)
# Half of the copies of a rank, R / 2, go to the other expert-parallel rank; the expert's ranks gather R of which each
# has half. There and back, in both passes; and the shared expert's regions.
EXPERTS_EXCHANGED = 4 * (2 * 64 * R / 2 / 2 + 2 * 64 * R / 2) + REGIONS
EXPERTS = Figures(EXPERTS_SAVED, EXPERTS_GRADIENTS, EXPERTS_MOVED, EXPERTS_FLOP, EXPERTS_EXCHANGED)
MOE_SOURCE = "megatron-core 0.12 to 0.16, transformer/moe: router.py, token_dispatcher.py, experts.py"

# Compressed attention: 4 heads of 32 over one tensor, ranks 24 and 2 x 12, a window of 8; on one device, 64 tokens.
W = 64
# transformers 5.23.0, models/deepseek_v4/modeling_deepseek_v4.py, DeepseekV4Attention: what both down projections put
# out, two norms' numbers, the normed query latent; queries before their norm, a number a head, queries behind it; the
# rotated keys; attention's output and row sums; both groups' outputs.
SHARED_SAVED = 2 * (24 + 32) + 2 * 4 + 2 * 24 + 2 * 128 + 4 * 4 + 2 * 128 + 2 * 32 + 2 * 128 + 4 * 4 + 2 * 2 * 12
# Gradients of q, and of the keys as keys and as values.
SHARED_GRADIENTS = 2 * (128 + 32 + 32)
SHARED_MOVED = 3 * 4 * (128 + 32) + 14 * 128
SHARED_PRODUCTS = 2 * (64 * 24 + 64 * 32 + 24 * 128 + 64 * 24 + 24 * 64)
OF_EIGHT = (32 * 8 - 8**2 / 2) / (32**2 / 2)
SHARED_FLOP = SHARED_PRODUCTS + 4 * s * 128 * OF_EIGHT
# DeepseekV4CSACompressor, of every fourth token: values and softmaxed gates of two series, in fp32 and cast, 8 a
# number; of a key the norm's input, its output and the rotated key, and one number. Its indexer does so with heads of
# 16.
CSA_SAVED = 8 * 2 * 32 + (3 * 2 * 32 + 4) / 4 + 8 * 2 * 16 + (3 * 2 * 16 + 4) / 4 + 2 * 2 * 16 + 4 * 2 + 4 * 2
# Two of the keys before a token, as a window of 8 tokens; all of them are scored by the indexer, one product of 32.
CSA_PRODUCTS = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 24 * 32 + 64 * 2)
CSA_FLOP = CSA_PRODUCTS + 4 * s * 128 / 4 * OF_EIGHT + 2 * s * 32 / 4
# DeepseekV4HCACompressor, of every sixteenth token, one series.
HCA_SAVED = 8 * 32 + (3 * 2 * 32 + 4) / 16
HCA_FLOP = 2 * 2 * 64 * 32 + 4 * s * 128 / 16
V4 = "transformers 5.23.0, models/deepseek_v4/modeling_deepseek_v4.py"
WHOLE = {"exchanged": "Megatron-LM 009276b runs it whole on every rank, and nobody cuts its sequence"}


def scan_exchange(entering: int, leaving: int) -> float:
    """From tokens to heads before a scan and back behind it: of what a rank has, half goes; mirrored backward."""
    return 2 * T * 2 * (entering + leaving) / 2 / 2


MIXERS: dict[Mixer, ByHand] = {
    "grouped_query": ByHand(
        small_dense(),
        Figures(
            saved=ATTENTION,
            temporary=ATTENTION_GRADIENTS,
            moved=ATTENTION_MOVED,
            flop=ATTENTION_PRODUCTS + 4 * s * 64,
            exchanged=REGIONS + ATTENTION_RING,
        ),
        "Korthikanti et al. 2022, section 4; Dao 2023; TransformerEngine 2.11, context_parallel.py",
    ),
    "sliding": ByHand(
        small_dense(mixers=("sliding", "grouped_query"), **WINDOW),
        Figures(
            saved=ATTENTION,
            temporary=ATTENTION_GRADIENTS,
            moved=ATTENTION_MOVED,
            flop=ATTENTION_PRODUCTS + 4 * s * 64 * IN_WINDOW,
            exchanged=REGIONS + WINDOW_RING,
        ),
        "Jiang et al. 2023 (Mistral 7B), section 2; the rest as grouped_query",
    ),
    "sparse": ByHand(
        small_dense(mixers=("sparse",), **INDEX),
        Figures(
            saved=ATTENTION + INDEXED,
            temporary=ATTENTION_GRADIENTS,
            moved=ATTENTION_MOVED,
            # Queries, key and head weights from h; one product of 32 over all scores.
            flop=ATTENTION_PRODUCTS + 2 * (64 * 32 + 64 * 16) + 4 * s * 64 * CHOSEN + 2 * s * 32,
            exchanged=REGIONS + ATTENTION_RING,
        ),
        "MiniMax-M3 config.json and DeepSeek-V3.2-Exp, inference/model.py, Indexer; the rest as grouped_query",
    ),
    "filtered": ByHand(
        small_dense(mixers=("filtered",)),
        Figures(
            saved=ATTENTION + FILTER_SAVED,
            temporary=ATTENTION_GRADIENTS,
            moved=ATTENTION_MOVED + FILTER_MOVED,
            # Two taps into half the width, and two back.
            flop=ATTENTION_PRODUCTS + 4 * s * 64 + 2 * (2 * 64 * 32 + 2 * 32 * 64),
            exchanged=REGIONS + ATTENTION_RING,
        ),
        "Wu et al. 2023 (Yuan 2.0), section 2.2; PaddleNLP 056cdcb, paddlenlp/transformers/yuan/modeling.py",
    ),
    "latent": ByHand(
        small_mla(),
        Figures(
            saved=LATENT_SAVED + LATENT_CORE,
            temporary=LATENT_GRADIENTS,
            moved=LATENT_MOVED,
            flop=LATENT_PRODUCTS + LATENT_CORE_FLOP,
            exchanged=REGIONS + LATENT_RING,
        ),
        "DeepSeek-V2 (2024), section 2.1; Megatron-LM core_v0.16.1, transformer/multi_latent_attention.py",
    ),
    "sparse_latent": ByHand(
        small_mla(mixers=("sparse_latent", "shared_sparse_latent"), **INDEX),
        Figures(
            saved=LATENT_SAVED + LATENT_CORE + INDEXED,
            temporary=LATENT_GRADIENTS,
            moved=LATENT_MOVED,
            # Index queries from the query's latent, key and head weights from h.
            flop=LATENT_PRODUCTS + 2 * (40 * 32 + 64 * 16 + 64 * 2) + LATENT_CORE_FLOP * CHOSEN + 2 * s * 32,
            exchanged=REGIONS + LATENT_RING,
        ),
        "DeepSeek-V3.2-Exp, inference/model.py, Indexer; the rest as latent",
    ),
    "shared_sparse_latent": ByHand(
        small_mla(mixers=("sparse_latent", "shared_sparse_latent"), **INDEX),
        Figures(
            saved=LATENT_SAVED + LATENT_CORE,
            temporary=LATENT_GRADIENTS,
            moved=LATENT_MOVED,
            flop=LATENT_PRODUCTS + LATENT_CORE_FLOP * CHOSEN,
            exchanged=REGIONS + LATENT_RING,
        ),
        "as sparse_latent, with an earlier layer's choice",
    ),
    # Keys 2 x 16 and values 4 x 24, chunks of 8, four taps.
    "gated_delta": ByHand(
        small_dense(**DELTA),
        Figures(
            # The joint projection q, k, v, z, a, b; the kernel's q and k of four heads, v, a triangle of C a head,
            # decay and both norms' numbers in fp32 and the strength; its output, the norm's number, the gated output.
            saved=T * (2 * (64 + 2 * 96 + 8) + 2 * 2 * 64 + 2 * 96 + 2 * 4 * 8 + 14 * 4 + 2 * 96 + 4 * 4 + 2 * 96) / 2,
            temporary=T * 2 * (2 * 64 + 96) / 2,
            # Convolution over q, k, v, in and out; the scan reads q, k, v and writes its output; the norm reads output
            # and z and writes one.
            moved=3 * T * (2 * 2 * 160 + 2 * (2 * 64 + 2 * 96) + 3 * 2 * 96) / 2,
            # A head: 6 C k of keys and queries with keys and triangle times keys, 4 C v, 2 C^2 / 3 of the inverse,
            # three products of the state.
            flop=2 * (64 * 264 + 96 * 64) + 4 * (6 * 8 * 16 + 4 * 8 * 24 + 2 * 8**2 / 3 + 6 * 16 * 24),
            exchanged=REGIONS + scan_exchange(264, 96),
        ),
        "Yang et al. 2024 (Gated Delta Networks); transformers 5.23.0, models/qwen3_next/modeling_qwen3_next.py",
    ),
    "lightning": ByHand(
        small_dense(mixers=("lightning",), chunk_tokens=8),
        Figures(
            # q, k, v before and behind SiLU, the scan's output; behind the norm over all heads, whose number every rank
            # has, its output, the gate's sigmoid and their product.
            saved=T * ((2 * 192 + 2 * 192 + 2 * 64 + 3 * 2 * 64) / 2 + 4),
            temporary=T * 2 * 192 / 2,
            # SiLU and scan read and write q, k, v; the norm two tensors and the gate three.
            moved=3 * T * (6 * 2 * 64 + 5 * 2 * 64) / 2,
            # q, k, v, gate, output; of a head scores and values in a chunk, 2 C (k + v), and the state, 4 k v.
            flop=2 * 5 * 64 * 64 + 4 * (2 * 8 * (16 + 16) + 4 * 16 * 16),
            exchanged=REGIONS + scan_exchange(192, 64),
        ),
        "MiniMax-01 (2025), section 2.2; transformers 5.23.0, models/minimax/modeling_minimax.py",
    ),
    # Width 4 x 32, two groups of state 16, chunks of 16, four taps.
    "mamba": ByHand(
        small_dense(**MAMBA),
        Figures(
            # z, x, B, C and a step a head; the scan's output, gated and normed, a number for each group.
            saved=T * (2 * (2 * 128 + 2 * 2 * 16 + 4) + 3 * 2 * 128 + 4 * 2) / 2,
            temporary=T * 2 * (2 * 128 + 2 * 2 * 16 + 4) / 2,
            # Convolution over x, B, C; the scan reads z, x, B, C and writes its output; the norm.
            moved=3 * T * (2 * 2 * 192 + 2 * (3 * 128 + 64) + 2 * 2 * 128) / 2,
            # Scores of a group, 2 C N; of a head scores times x, 2 C P, and states written and read, 4 N P.
            flop=2 * (64 * 324 + 128 * 64) + 2 * 2 * 16 * 16 + 4 * (2 * 16 * 32 + 4 * 16 * 32),
            exchanged=REGIONS + scan_exchange(324, 128),
        ),
        "Dao and Gu 2024, sections 6 and 7; state-spaces/mamba v2.2.4, ops/triton/ssd_combined.py",
    ),
    # 128 channels of state 16, a rank of 64 / 16 for the steps.
    "selective_scan": ByHand(
        small_dense(mixers=("selective_scan",), mamba_heads=128, mamba_state=16, convolution=4),
        Figures(
            # x and z; steps' narrow input and B and C, on every rank, B and C copied once; the scan's output; every
            # 2048 tokens a state and its decay in fp32.
            saved=T * (2 * 2 * 128 / 2 + 2 * (4 + 2 * 2 * 16) + 2 * 128 / 2 + 2 * 4 * 16 * 128 / 2048 / 2),
            # Convolved input, steps and their gradients, those of gate, input and output, the gated output.
            temporary=T * 8 * 2 * 128 / 2,
            # The convolution; the scan reads its input and the steps twice, the gate, and writes its output.
            moved=3 * T * (2 * 2 * 128 + 6 * 2 * 128) / 2,
            flop=2 * (64 * 256 + 128 * (4 + 32) + 4 * 128 + 128 * 64) + 9 * 16 * 128,
            exchanged=REGIONS + scan_exchange(256, 128),
        ),
        "Gu and Dao 2023, section 3.3.2; state-spaces/mamba v2.2.4, mamba_ssm/ops/selective_scan_interface.py",
    ),
    "reused_grouped_query": ByHand(
        small_dense(mixers=("grouped_query", "reused_grouped_query"), qk_norm=True),
        Figures(
            # Queries as projected, a number a head of their norm, and rotated; keys and values are another layer's.
            saved=T * ((2 * 64 + 4 * 4 + 2 * 64) / 2 + OUTPUT + RING),
            temporary=ATTENTION_GRADIENTS,
            # Norm and rotation of the queries alone.
            moved=T * (3 * (4 * 64 + 4 * 64) / 2 + 14 * 64 / 2),
            flop=2 * (64 * 64 + 64 * 64) + 4 * s * 64,
            exchanged=REGIONS + ATTENTION_RING,
        ),
        "transformers 5.23.0, models/gemma4/modeling_gemma4.py, Gemma4TextAttention",
    ),
    "reused_sliding": ByHand(
        small_dense(mixers=("sliding", "reused_sliding", "grouped_query"), **WINDOW),
        Figures(
            saved=T * (2 * 64 / 2 + OUTPUT + RING),
            temporary=ATTENTION_GRADIENTS,
            moved=T * (3 * 4 * 64 / 2 + 14 * 64 / 2),
            flop=2 * (64 * 64 + 64 * 64) + 4 * s * 64 * IN_WINDOW,
            exchanged=REGIONS + WINDOW_RING,
        ),
        "transformers 5.23.0, models/gemma4/modeling_gemma4.py, Gemma4TextAttention",
    ),
    "window_shared": ByHand(
        small_compressed("window_shared"),
        Figures(W * SHARED_SAVED, W * SHARED_GRADIENTS, W * SHARED_MOVED, SHARED_FLOP, 0),
        V4,
        WHOLE,
        cut=False,
    ),
    # What compressors and indexer read and write beside their products is left out, as their kernels are not published.
    "compressed_sparse": ByHand(
        small_compressed("compressed_sparse"),
        Figures(W * (SHARED_SAVED + CSA_SAVED), W * SHARED_GRADIENTS, W * SHARED_MOVED, SHARED_FLOP + CSA_FLOP, 0),
        V4,
        WHOLE,
        cut=False,
    ),
    "heavily_compressed": ByHand(
        small_compressed("heavily_compressed"),
        Figures(W * (SHARED_SAVED + HCA_SAVED), W * SHARED_GRADIENTS, W * SHARED_MOVED, SHARED_FLOP + HCA_FLOP, 0),
        V4,
        WHOLE,
        cut=False,
    ),
    # Keys and values of two heads of 16, gates through a rank of 16, chunks of 8, four taps.
    "kimi_delta": ByHand(
        small_dense(**KIMI),
        Figures(
            # q, k, v and a strength a head; the narrow inputs of decay and gate, split by tokens; the gate; q, k and v
            # of the kernel, decays summed in fp32 and as they came, two triangles of C, both norms' numbers and the
            # strength; the output, its norm's number, the gated output.
            saved=T
            * (
                (2 * (3 * 32 + 2) + 2 * 2 * 16 + 2 * 32)
                + (2 * 2 * 32 + 2 * 32 + (4 + 2) * 32 + 2 * 2 * 2 * 8 + (2 * 4 + 2) * 2)
                + (2 * 32 + 4 * 2 + 2 * 32)
            )
            / 2,
            # Gradients of q, k and decays, and of v.
            temporary=T * 2 * (3 * 32 + 32) / 2,
            # Convolutions over q, k, v; the scan reads those and the decays and writes its output; the norm with gate.
            moved=3 * T * (2 * 2 * 96 + 2 * (3 * 32 + 2 * 32) + 3 * 2 * 32) / 2,
            flop=2 * (3 * 64 * 32 + 64 * 2 + 2 * 64 * 16 + 2 * 16 * 32 + 32 * 64)
            + 2 * (6 * 8 * 16 + 4 * 8 * 16 + 2 * 8**2 / 3 + 6 * 16 * 16),
            # q, k, v, decays and strengths of every token.
            exchanged=REGIONS + scan_exchange(4 * 32 + 2, 32),
        ),
        "Kimi Team 2025 (Kimi Linear), section 3; transformers 5.23.0, models/kimi_linear/modeling_kimi_linear.py",
    ),
    "linear": ByHand(
        small_dense(),
        Figures(saved=0, temporary=0, moved=0, flop=2 * 64 * 64, exchanged=REGIONS),
        "Megatron-LM core_v0.16.1, core/models/gpt/heterogeneous/heterogeneous_layer_specs.py",
        {"saved": "its input is the norm's output", "temporary": NO_TEMPORARY, "moved": NO_MOVED},
    ),
    "none": ByHand(
        small_dense(),
        Figures(0, 0, 0, 0, 0),
        "Megatron-LM core_v0.16.1, core/models/gpt/heterogeneous/heterogeneous_layer_specs.py",
        dict.fromkeys(Figures._fields, "a layer without the part"),
    ),
}
FEED_FORWARDS: dict[FeedForward, ByHand] = {
    "gated": ByHand(
        small_dense(),
        Figures(
            # Gate and up, and their product; their gradients; SwiGLU reads two and writes one.
            saved=T * (2 * 2 * 160 + 2 * 160) / 2,
            temporary=T * 2 * 2 * 160 / 2,
            moved=3 * T * 3 * 2 * 160 / 2,
            flop=2 * 3 * 64 * 160,
            exchanged=REGIONS,
        ),
        "Shazeer 2020; Megatron-LM core_v0.16.1, core/fusions/fused_bias_swiglu.py",
    ),
    "plain": ByHand(
        small_dense(gated=False, activation="gelu"),
        Figures(
            saved=T * (2 * 160 + 2 * 160) / 2,
            temporary=T * 2 * 160 / 2,
            moved=3 * T * 2 * 2 * 160 / 2,
            flop=2 * 2 * 64 * 160,
            exchanged=REGIONS,
        ),
        "Korthikanti et al. 2022, section 4.1: 8 s b h of GELU's input and as much of its output, for f = 4 h",
    ),
    "linear": MIXERS["linear"],
    "experts": ByHand(small_moe(), EXPERTS, MOE_SOURCE),
    "hashed_experts": ByHand(
        small_moe(first_k_dense_replace=0, feed_forwards=("hashed_experts", "experts"), router_bias=True),
        EXPERTS,
        f"{V4}: the table takes the place of the choice; scores weigh the experts as before",
    ),
    "experts_beside": ByHand(
        small_moe(first_k_dense_replace=0, feed_forwards=("experts_beside",)),
        Figures(
            # A network, and norms behind it, before the experts and behind them, of which one's output is kept.
            saved=EXPERTS_SAVED + T * (4 + 2) * 160 / 2 + T / 2 * (3 * (2 * 64 + 4) + 2 * 64),
            temporary=EXPERTS_GRADIENTS,
            moved=EXPERTS_MOVED + 3 * T * 6 * 160 / 2 + 3 * 3 * T / 2 * 4 * 64,
            flop=EXPERTS_FLOP + 2 * 3 * 64 * 160,
            exchanged=EXPERTS_EXCHANGED + REGIONS,
        ),
        "transformers 5.23.0, models/gemma4/modeling_gemma4.py, Gemma4TextDecoderLayer",
    ),
    "none": MIXERS["none"],
}
assert set(MIXERS) == set(get_args(Mixer))
