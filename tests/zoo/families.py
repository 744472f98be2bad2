"""One model type for each route and each oddity, with what a capture from its small model must give."""

from __future__ import annotations

from dataclasses import dataclass

Layers = dict[str, tuple[int, ...]]

TWO: Layers = {"self": (0, 1)}
THREE_BLOCKS: Layers = {"encoder": (0, 1), "decoder": (0, 1), "cross": (0, 1)}
FOUR_STAGES: Layers = {"stage0": (0, 1), "stage1": (2, 3), "stage2": (4, 5), "stage3": (6, 7)}
TOWERS: Layers = {"vision": (0, 1), "text": (0, 1)}
POOLED: Layers = {"vision": (0, 1), "vision.2": (0,), "text": (0, 1)}

PERCEIVER: Layers = {"encoder.cross": (0,), "encoder": (0, 1), "decoder.cross": (0,)}


@dataclass(frozen=True)
class Family:
    """What is expected of a type.

    Attributes:
        kind: its name in transformers.
        oddity: why it is here.
        route: how its attention is obtained.
        layers: for each block the true layer numbers.
        compared: how many tensors of its own eager output there are to compare with.
        sink: whether rows sum to less than one.
        error: words of the error, for models that have no attention to capture.
    """

    kind: str
    oddity: str
    route: str = "interface"
    layers: Layers | None = None
    compared: int = 2
    sink: bool = False
    error: str = ""


def _text(kind: str, oddity: str, route: str = "interface") -> Family:
    return Family(kind, oddity, route, TWO)


FAMILIES = (
    # Encoders and decoders on transformers' attention interface.
    _text("bert", "encoder"),
    _text("gpt2", "decoder, one matrix for queries, keys and values"),
    _text("llama", "decoder with rotary positions"),
    _text("mistral", "grouped queries, sliding window"),
    _text("qwen3", "queries and keys normalised"),
    _text("gemma2", "soft-capped scores, sliding window every other layer"),
    _text("gemma3_text", "five layers of six are local"),
    _text("mixtral", "experts"),
    _text("ctrl", "an early decoder"),
    _text("opt", "learned positions with an offset"),
    _text("modernbert", "encoder with local layers"),
    _text("deepseek_v3", "latent keys and values (MLA)"),
    _text("deepseek_v32", "sparse attention chosen by an indexer"),
    _text("granite_swa", "weights are scaled after the softmax"),
    Family("gpt_oss", "learned sinks", layers=TWO, sink=True),
    _text("albert", "one module for all layers"),
    Family("qwen2_5_omni_dit", "looks kernels up and has no eager function", layers=TWO, compared=0),
    _text("decision_transformer", "states, actions and rewards"),
    # A softmax of the file's own.
    _text("bloom", "ALiBi", "tap"),
    _text("mpt", "ALiBi", "tap"),
    _text("falcon", "many queries, one key", "tap"),
    _text("gptj", "rotary positions of an older kind", "tap"),
    _text("codegen", "blocks of fused weights", "tap"),
    _text("xlm", "older encoder", "tap"),
    _text("mpnet", "shared relative bias", "tap"),
    _text("deberta", "content and position apart", "tap"),
    _text("deberta-v2", "content and position apart, in buckets", "tap"),
    _text("xlnet", "two streams", "tap"),
    _text("convbert", "convolution beside the heads", "tap"),
    _text("big_bird", "blocks, full on short texts", "tap"),
    _text("nystromformer", "landmarks, full on short texts", "tap"),
    Family("squeezebert", "returns scores, not weights", "tap", TWO, compared=0),
    _text("cpmant", "prompt before the text", "tap"),
    _text("wavlm", "gated relative bias; returns the mean of its heads", "tap"),
    # Chunks and hashes, which only the model can put together.
    _text("longformer", "bands", "output_attentions"),
    _text("reformer", "hashes and chunks", "output_attentions"),
    # Encoder-decoders.
    Family("t5", "relative bias", layers=THREE_BLOCKS, compared=6),
    Family("umt5", "relative bias in each layer", layers=THREE_BLOCKS, compared=6),
    Family("bart", "three blocks", layers=THREE_BLOCKS, compared=6),
    Family("whisper", "sound to text", layers=THREE_BLOCKS, compared=6),
    Family("time_series_transformer", "numbers to numbers", layers=THREE_BLOCKS, compared=6),
    Family("fsmt", "time before batch", "tap", THREE_BLOCKS, compared=6),
    Family("led", "bands in the encoder only", "output_attentions", THREE_BLOCKS, compared=6),
    # Pictures and sounds.
    _text("vit", "picture"),
    _text("dinov2", "picture"),
    _text("beit", "relative bias between patches"),
    Family("swin", "shifted windows", layers=FOUR_STAGES, compared=4),
    Family("swinv2", "cosine scores in windows", "tap", FOUR_STAGES, compared=4),
    Family("segformer", "fewer keys than queries", layers=FOUR_STAGES, compared=8),
    Family("detr", "convolutions, then an encoder-decoder", layers=THREE_BLOCKS, compared=6),
    _text("wav2vec2", "waveform"),
    _text("wav2vec2-conformer", "convolution between attention"),
    _text("audio-spectrogram-transformer", "spectrogram"),
    _text("patchtst", "patches of a series"),
    # Several towers.
    Family("clip", "two towers", layers=TOWERS, compared=4),
    Family("siglip", "two towers and a pooling head", "interface+tap", POOLED, compared=4),
    Family("llava", "picture inside the text", layers=TOWERS),
    Family("paligemma", "picture before the text, which sees all of it", layers=TOWERS),
    Family("voxtral_realtime", "sound added to the text", layers={"audio": (0, 1), "text": (0, 1)}),
    # Part of the keys comes from elsewhere.
    _text("gemma4_assistant", "keys and values of another model"),
    Family("perceiver", "ids by a name of its own", "tap", PERCEIVER, compared=4),
    # Layers without attention between those with it.
    Family("jamba", "state-space layers between", layers={"self": (1,)}, compared=1),
    Family("qwen3_next", "linear attention between", layers={"self": (1,)}, compared=1),
    Family("minimax", "lightning attention between", layers={"self": (0,)}, compared=1),
    # No attention between positions.
    Family("mamba", "state space", error="no attention"),
    Family("resnet", "convolutions", error="no attention"),
    Family("fnet", "Fourier transforms", error="no attention"),
    Family("xlstm", "recurrence", error="no attention"),
    Family("rwkv", "recurrence that returns states as attentions", error="not"),
    Family("yoso", "sampled hashes that return no matrix", error="not"),
)
