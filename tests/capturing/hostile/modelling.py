"""A small encoder in one file, as it comes with `trust_remote_code`, and forty ways to write its attention.

All of them compute, or mean to compute, softmax(q·kᵀ/√d)·v of the same projections, except those that say otherwise.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


class HostileConfig(PreTrainedConfig):
    model_type = "hostile"

    def __init__(self, kind="Standard", width=16, heads=4, layers=2, vocabulary=40, **kwargs):
        self.kind, self.width, self.heads, self.layers, self.vocabulary = kind, width, heads, layers, vocabulary
        super().__init__(**kwargs)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        b, n, _ = x.shape
        return [p(x).view(b, n, self.heads, self.size).transpose(1, 2) for p in (self.q, self.k, self.v)]

    def apart(self, x):
        return zip(*(t.unbind(1) for t in self.split(x)), strict=True)

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) / math.sqrt(self.size)

    def merge(self, x):
        return self.o(x.transpose(1, 2).flatten(2))


class Standard(Attention):
    def forward(self, x):
        q, k, v = self.split(x)
        return self.merge(F.dropout(torch.softmax(self.scores(q, k), -1), 0.1, self.training) @ v)


class Einsum(Attention):
    def forward(self, x):
        q, k, v = self.split(x)
        p = torch.einsum("bhid,bhjd->bhij", q, k).div(math.sqrt(self.size)).softmax(dim=-1)
        return self.merge(torch.einsum("bhij, bhjd -> bhid", p, v))


class EinsumDots(Attention):
    def forward(self, x):
        q, k, v = self.split(x)
        p = F.softmax(self.scores(q, k), dim=3)
        return self.merge(torch.einsum("...ij,...jd->...id", p, v))


class SoftmaxModule(Attention):
    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.normalise = nn.Softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.split(x)
        return self.merge(torch.matmul(self.normalise(self.scores(q, k)).to(v.dtype), v))


class FoldedBatchHeads(Attention):
    def forward(self, x):
        (b, n, _), (q, k, v) = x.shape, [t.flatten(0, 1) for t in self.split(x)]
        out = torch.bmm(torch.softmax(self.scores(q, k), -1), v)
        return self.merge(out.view(b, self.heads, n, self.size))


class FoldedHeadsBatch(Attention):
    """As in the first implementations: the heads of all texts behind one another, cut apart and joined by chunks."""

    def forward(self, x):
        q, k, v = [torch.cat(p(x).chunk(self.heads, -1), 0) for p in (self.q, self.k, self.v)]
        out = torch.bmm(torch.softmax(self.scores(q, k), -1), v)
        return self.o(torch.cat(out.chunk(self.heads, 0), -1))


class FoldedHeadsBatchView(Attention):
    def forward(self, x):
        (b, n, _), (q, k, v) = x.shape, [t.transpose(0, 1).flatten(0, 1) for t in self.split(x)]
        out = F.softmax(self.scores(q, k), -1) @ v
        return self.merge(out.reshape(self.heads, b, n, self.size).transpose(0, 1))


class FoldedAndHidden(Attention):
    """Batch and heads in one axis, and unfolded by an einsum-free trick that does not show in which order."""

    def forward(self, x):
        (b, n, _), (q, k, v) = x.shape, [t.transpose(0, 1).flatten(0, 1) for t in self.split(x)]
        out = F.softmax(self.scores(q, k), -1) @ v
        order = torch.arange(self.heads * b).view(self.heads, b).t().flatten()
        return self.merge(torch.stack([out[i] for i in order.tolist()]).view(b, self.heads, n, self.size))


class TimeFirst(Attention):
    def forward(self, x):
        b, n, _ = x.shape
        t = x.transpose(0, 1)
        q, k, v = [p(t).view(n, b * self.heads, self.size).transpose(0, 1) for p in (self.q, self.k, self.v)]
        out = torch.bmm(F.softmax(self.scores(q, k), dim=-1), v)
        return self.o(out.transpose(0, 1).reshape(n, b, -1)).transpose(0, 1)


class QueriesBeforeHeads(Attention):
    """b i h j."""

    def forward(self, x):
        q, k, v = [t.transpose(1, 2) for t in self.split(x)]
        p = torch.softmax(torch.einsum("bihd,bjhd->bihj", q, k) / math.sqrt(self.size), -1)
        return self.o(torch.einsum("bihj,bjhd->bihd", p, v).flatten(2))


class HeadsLast(Attention):
    """b i j h, and the softmax not over the last axis."""

    def forward(self, x):
        q, k, v = [t.transpose(1, 2) for t in self.split(x)]
        p = torch.softmax(torch.einsum("bihd,bjhd->bijh", q, k) / math.sqrt(self.size), 2)
        return self.o(torch.einsum("bijh,bjhd->bihd", p, v).flatten(2))


class HeadsFirst(Attention):
    """h b i j."""

    def forward(self, x):
        q, k, v = [t.transpose(0, 1) for t in self.split(x)]
        return self.merge((torch.softmax(self.scores(q, k), -1) @ v).transpose(0, 1))


class KeysBeforeQueries(Attention):
    """vᵀ · pᵀ, with the softmax over the last axis but one."""

    def forward(self, x):
        q, k, v = self.split(x)
        p = torch.softmax(k @ q.transpose(-1, -2) / math.sqrt(self.size), -2)
        return self.merge((v.transpose(-1, -2) @ p).transpose(-1, -2))


class QueryChunks(Attention):
    size_of_chunk = 3

    def forward(self, x):
        q, k, v = self.split(x)
        parts = [torch.softmax(self.scores(c, k), -1) @ v for c in q.split(self.size_of_chunk, 2)]
        return self.merge(torch.cat(parts, 2))


class QueryChunksInPlace(Attention):
    def forward(self, x):
        q, k, v = self.split(x)
        out = torch.empty_like(q)
        for at in range(0, q.shape[2], 2):
            out[:, :, at : at + 2] = torch.softmax(self.scores(q[:, :, at : at + 2], k), -1) @ v
        return self.merge(out)


class QueryChunksBackwards(Attention):
    def forward(self, x):
        q, k, v = self.split(x)
        parts = [torch.softmax(self.scores(c, k), -1) @ v for c in reversed(q.split(3, 2))]
        return self.merge(torch.cat(parts[::-1], 2))


class OneHeadAtATime(Attention):
    def forward(self, x):
        heads = [torch.softmax(self.scores(q, k), -1) @ v for q, k, v in self.apart(x)]
        return self.o(torch.cat(heads, -1))


class OneHeadAtATimeStacked(Attention):
    def forward(self, x):
        heads = [torch.softmax(self.scores(q, k), -1) @ v for q, k, v in self.apart(x)]
        return self.merge(torch.stack(heads, 1))


class HeadsAndChunks(Attention):
    """For each chunk of queries each head: which softmax is which cannot be told."""

    def forward(self, x):
        q, k, v = self.split(x)
        rows = []
        for c in q.split(3, 2):
            parts = [torch.softmax(self.scores(c[:, h], k[:, h]), -1) @ v[:, h] for h in range(self.heads)]
            rows.append(torch.cat(parts, -1))
        return self.o(torch.cat(rows, 1))


class OneTextAtATime(Attention):
    def forward(self, x):
        q, k, v = self.split(x)
        return self.merge(
            torch.stack([torch.softmax(self.scores(a, b), -1) @ c for a, b, c in zip(q, k, v, strict=True)])
        )


class Differential(Attention):
    """The difference of two softmaxes: not attention of the kind that has rows of one."""

    def forward(self, x):
        q, k, v = self.split(x)
        p = torch.softmax(self.scores(q, k), -1) - 0.5 * torch.softmax(self.scores(k, q), -1)
        return self.merge(p @ v)


class DifferentialLate(Attention):
    def forward(self, x):
        q, k, v = self.split(x)
        a, b = torch.softmax(self.scores(q, k), -1), torch.softmax(self.scores(k, q), -1)
        return self.merge(a @ v - 0.5 * (b @ v))


class SinkColumn(Attention):
    """A learned logit that takes a part and gives nothing."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.sink = nn.Parameter(torch.linspace(-1, 1, heads))

    def forward(self, x):
        q, k, v = self.split(x)
        s = self.scores(q, k)
        sink = self.sink.view(1, -1, 1, 1).expand(*s.shape[:3], 1)
        return self.merge(torch.softmax(torch.cat([s, sink], -1), -1)[..., :-1] @ v)


class SinkColumnFirst(SinkColumn):
    def forward(self, x):
        q, k, v = self.split(x)
        s = self.scores(q, k)
        sink = self.sink.view(1, -1, 1, 1).expand(*s.shape[:3], 1)
        return self.merge(torch.softmax(torch.cat([sink, s], -1), -1)[..., 1:] @ v)


class MemoryKey(Attention):
    """A learned key with a value of its own."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.memory = nn.Parameter(torch.randn(2, 1, heads, 1, width // heads))

    def forward(self, x):
        q, k, v = self.split(x)
        k, v = (torch.cat([m.expand(len(x), -1, -1, -1), t], 2) for m, t in zip(self.memory, (k, v), strict=True))
        return self.merge(torch.softmax(self.scores(q, k), -1) @ v)


class MaskedAfterwards(Attention):
    """Weights of every second key are set to zero behind the softmax."""

    def forward(self, x):
        q, k, v = self.split(x)
        seen = torch.arange(x.shape[1]) % 2 == 0
        return self.merge((torch.softmax(self.scores(q, k), -1) * seen) @ v)


class TalkingHeads(Attention):
    """Heads are mixed behind the softmax."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.mix = nn.Parameter(torch.eye(heads) * 2 - 0.5)

    def forward(self, x):
        q, k, v = self.split(x)
        p = torch.softmax(self.scores(q, k), -1)
        return self.merge(torch.tensordot(p, self.mix, ([1], [0])).permute(0, 3, 1, 2) @ v)


class TalkingScores(TalkingHeads):
    """Heads are mixed before the softmax, which is then what it seems."""

    def forward(self, x):
        q, k, v = self.split(x)
        s = torch.einsum("bhij,hg->bgij", self.scores(q, k), torch.eye(self.heads))
        return self.merge(torch.softmax(s, -1) @ v)


class OneValue(Attention):
    """All heads share the values of the first."""

    def forward(self, x):
        q, k, v = self.split(x)
        return self.merge(torch.einsum("bhij,bjd->bhid", torch.softmax(self.scores(q, k), -1), v[:, 0]))


class Grouped(Attention):
    """[batch, groups, heads of a group, queries, keys]."""

    def forward(self, x):
        q, k, v = [t.unflatten(1, (2, -1)) for t in self.split(x)]
        return self.merge((torch.softmax(self.scores(q, k), -1) @ v).flatten(1, 2))


class Fused(Attention):
    def forward(self, x):
        return self.merge(F.scaled_dot_product_attention(*self.split(x)))


class FusedFolded(Attention):
    def forward(self, x):
        (b, n, _), (q, k, v) = x.shape, [t.flatten(0, 1) for t in self.split(x)]
        return self.merge(F.scaled_dot_product_attention(q, k, v).view(b, self.heads, n, self.size))


class FusedHeadsFirst(Attention):
    def forward(self, x):
        return self.merge(F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in self.split(x))).transpose(0, 1))


class Packed(Attention):
    """torch's own module."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)
        self.share()

    def share(self):
        with torch.no_grad():
            self.inner.in_proj_weight.copy_(torch.cat([p.weight for p in (self.q, self.k, self.v)]))
            self.inner.in_proj_bias.copy_(torch.cat([p.bias for p in (self.q, self.k, self.v)]))

    def forward(self, x):
        return self.inner(x, x, x)[0]


class PackedTimeFirst(Packed):
    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.inner.batch_first = False

    def forward(self, x):
        t = x.transpose(0, 1)
        return self.inner(t, t, t, need_weights=False)[0].transpose(0, 1)


class WeightsFromAnInnerModule(Attention):
    class AttentionWeights(nn.Module):
        def forward(self, scores):
            return torch.softmax(scores, -1)

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.attention_weights = self.AttentionWeights()

    def forward(self, x):
        q, k, v = self.split(x)
        return self.merge(self.attention_weights(self.scores(q, k)) @ v)


class Windows(Attention):
    """Blocks of two positions that see only themselves."""

    def forward(self, x):
        n = x.shape[1]
        padded = F.pad(x, (0, 0, 0, n % 2))
        q, k, v = [t.unflatten(2, (-1, 2)) for t in self.split(padded)]
        return self.merge((torch.softmax(self.scores(q, k), -1) @ v).flatten(2, 3)[:, :, :n])


class KeyChunks(Attention):
    """One softmax for each half of the keys, brought together by their sums."""

    def forward(self, x):
        q, k, v = self.split(x)
        scores = [self.scores(q, c) for c in k.chunk(2, 2)]
        sums = torch.softmax(torch.stack([s.logsumexp(-1) for s in scores], -1), -1)
        parts = [torch.softmax(s, -1) @ c for s, c in zip(scores, v.chunk(2, 2), strict=True)]
        return self.merge(sum(sums[..., i : i + 1] * p for i, p in enumerate(parts)))


class OverQueries(Attention):
    """The softmax goes over the queries."""

    def forward(self, x):
        q, k, v = self.split(x)
        return self.merge(torch.softmax(self.scores(q, k), -2) @ v)


class Linear(Attention):
    """softmax(q) · (softmax(k)ᵀ · v): no matrix of positions."""

    def forward(self, x):
        q, k, v = self.split(x)
        return self.merge(torch.softmax(q, -1) @ (torch.softmax(k, -2).transpose(-1, -2) @ v))


class ByHand(Attention):
    """exp and a division: no softmax is called."""

    def forward(self, x):
        q, k, v = self.split(x)
        e = torch.exp(self.scores(q, k))
        return self.merge(e / e.sum(-1, keepdim=True) @ v)


class Elementwise(Attention):
    """A product and a sum in place of a matrix product."""

    def forward(self, x):
        q, k, v = self.split(x)
        p = torch.softmax(self.scores(q, k), -1)
        return self.merge((p[..., None] * v[:, :, None]).sum(3))


class TwoProducts(Attention):
    """Halves of the values go into two products with the same weights."""

    def forward(self, x):
        q, k, v = self.split(x)
        p = torch.softmax(self.scores(q, k), -1)
        return self.merge(torch.cat([p @ half for half in v.chunk(2, -1)], -1))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = globals()[config.kind](config.width, config.heads)
        self.norm, self.feed = nn.LayerNorm(config.width), nn.Linear(config.width, config.width)

    def forward(self, x):
        x = self.norm(x + self.attention(x))
        return x + torch.tanh(self.feed(x))


class HostileModel(PreTrainedModel):
    config_class = HostileConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x)
        return (x,)
