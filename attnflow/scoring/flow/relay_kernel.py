# mypy: ignore-errors
# ruff: noqa: SIM109 - plain comparisons compile to nothing; a tuple would be built.
# numba reads these functions and infers their types; annotations would have no effect.
"""A flow from one output to each input in three hops, laid by hand instead of searched for; compiled. See relay.py.

The output *t* hands what it holds out to other tokens (*spread*), tokens hand on to tokens (*relay*), and the input *j*
collects from all (*gather*). Between the hops everything stays on its token, whose own edges carry it. Whatever is laid
is a flow of the network, so its value is a lower bound; nothing is ever taken back.

The supply of *t* and the demand of *j* have three tiers each: a step, the next step, and a block of steps. What uses a
later tier has to pass the token's own edges of the steps before it. Hence three budgets, one inside the other: for all
tiers, for all but the first, and for the last together with whatever stays on the token. ``held`` holds seven numbers:
the budgets of *t*, then those of *j*, and how many edges between tokens may still be looked at. Once that many were
looked at, what has been laid is left as it is.

No edge is used twice: what goes over the block between is noted in ``log`` (token, amount, and where the token above
noted its last), and whoever uses the same row of it again takes that off. A log that is full ends the laying.
"""

from __future__ import annotations

import numpy as np
from numba import types

from attnflow.scoring.flow.counting import COUNTING
from attnflow.scoring.flow.waves import HOPS, U0, U1, U2, U3, inner

_INT, _SET = types.CPointer(types.int64), types.CPointer(types.uint64)
_PLACE = _FLAG = types.uint64
WORK = np.uint64(6)
LOG = np.uint64(16)  # hops that are noted, times the number of tokens
SIGNATURE = types.void(
    *(_PLACE, _FLAG, _PLACE, *(_INT,) * 13, _PLACE, _PLACE, _PLACE, *(_INT,) * 10, _SET),
)


@inner
def _draw(side, k, n, held, hub, want):
    """Take up to ``want`` from the tiers of token k, the least bound tier first; what was taken."""
    b0, b1, b2 = held[hub], held[hub + U1], held[hub + U2]
    x = min(min(want, side[k]), b0)
    y = min(min(want - x, side[n + k]), min(b0 - x, b1))
    z = min(min(want - x - y, side[U2 * n + k]), min(min(b0 - x, b1) - y, b2))
    side[k] -= x
    side[n + k] -= y
    side[U2 * n + k] -= z
    held[hub] = b0 - x - y - z
    held[hub + U1] = b1 - y - z
    held[hub + U2] = b2 - z
    return x + y + z


@inner
def _could(side, k, n, held, hub):
    """How much :func:`_draw` would give at most."""
    b0, b1, b2 = held[hub], held[hub + U1], held[hub + U2]
    x = min(side[k], b0)
    y = min(side[n + k], min(b0 - x, b1))
    return x + y + min(side[U2 * n + k], min(min(b0 - x, b1) - y, b2))


@inner
def _draw_near(side, k, n, held, hub, want):
    """:func:`_draw` from the two tiers that are nearest to the end."""
    b0, b1 = held[hub], held[hub + U1]
    x = min(min(want, side[k]), b0)
    y = min(min(want - x, side[n + k]), min(b0 - x, b1))
    side[k] -= x
    side[n + k] -= y
    held[hub] = b0 - x - y
    held[hub + U1] = b1 - y


@inner
def _could_near(side, k, n, held, hub):
    """How much :func:`_draw_near` would give at most."""
    x = min(side[k], held[hub])
    return x + min(side[n + k], min(held[hub] - x, held[hub + U1]))


@inner
def _staying(held, hub):
    """How much may come from, or go to, the token itself."""
    return min(held[hub], min(held[hub + U1], held[hub + U2]))


@inner
def _stay(held, hub, y):
    held[hub] -= y
    held[hub + U1] -= y
    held[hub + U2] -= y


@inner
def _offer(k, t, n, up, held):
    """What t can bring to token k before the relay."""
    return _staying(held, U0) if k == t else _could(up, k, n, held, U0)


@inner
def _bring(k, t, n, up, held, y):
    if k == t:
        _stay(held, U0, y)
    else:
        _draw(up, k, n, held, U0, y)


@inner
def _straight(n, t, j, lo, hi, x, u, d, l1, l2, l3, chain, supply, demand, into, up, down, held):
    """What needs no relay: each token's supply to its own demand, the rest of it to j, and t's to the rest of that."""
    total = np.int64(0)
    for k in range(lo, hi):
        into[k] = 0
        up[k], up[n + k], up[U2 * n + k] = u[k], u[n + k], u[U2 * n + k]
        down[k], down[n + k], down[U2 * n + k] = l1[j * n + k], l2[j * n + k], l3[j * n + k]
        a, b = min(x[k], chain[k]), min(d[j * n + k], chain[k])
        y = min(a, b)
        if k == t or k == j:
            a, b, y = np.int64(0), np.int64(0), np.int64(0)
        supply[k] = a - y
        demand[k] = b - y
        total += y
    y = min(x[j], _staying(held, U3))
    _stay(held, U3, y)
    total += y
    y = min(d[j * n + t], _staying(held, U0))
    _stay(held, U0, y)
    total += y
    for k in range(lo, hi):
        if supply[k] > 0:
            y = _draw(down, k, n, held, U3, supply[k])
            supply[k] -= y
            total += y
        elif demand[k] > 0:
            y = _draw(up, k, n, held, U0, demand[k])
            demand[k] -= y
            total += y
    y = _draw(up, j, n, held, U0, _staying(held, U3))
    _stay(held, U3, y)
    total += y
    y = _draw(down, t, n, held, U3, _staying(held, U0))
    _stay(held, U0, y)
    return total + y


@inner
def _note(log, last, n, k, q, y):
    """Note that y went from k to q; False if the log is full."""
    at = np.uint64(last[n])
    log[U3 * at], log[U3 * at + U1], log[U3 * at + U2] = np.int64(q), y, last[k]
    last[k] = np.int64(at)
    last[n] += 1
    return at + U1 < LOG * n


@inner
def _spend(log, last, k, spent):
    """Put what k has handed on into ``spent``."""
    at = last[k]
    while at >= 0:
        spent[np.uint64(log[U3 * np.uint64(at)])] += log[U3 * np.uint64(at) + U1]
        at = log[U3 * np.uint64(at) + U2]


@inner
def _unspend(log, at, spent):
    """Clear what :func:`_spend` put there; ``at`` is where the list began then."""
    while at >= 0:
        spent[np.uint64(log[U3 * np.uint64(at)])] = 0
        at = log[U3 * np.uint64(at) + U2]


@inner
def _relay_supplies(n, causal, t, j, lo, hi, goal, mid, supply, demand, into, down, held, last, log, reads):
    """Tokens hand on what they could not bring down themselves."""
    total = np.int64(0)
    room = True
    for step in range(hi - lo):
        k = hi - U1 - step
        left = supply[k]
        if total >= goal or not room or held[WORK] <= 0:
            break
        if left == 0:
            continue
        row = k * n
        y = min(min(left, mid[row + j]), _staying(held, U3))
        if y > 0:
            _stay(held, U3, y)
            left -= y
            room = _note(log, last, n, k, j, y)
        at = lo
        for q in range(lo, k if causal else hi):
            if left == 0 or not room:
                break
            at = q
            y = min(left, mid[row + q])
            if COUNTING:
                reads[HOPS] += U1
            if y == 0 or q == j or q == k or q == t:
                continue
            a = min(y, demand[q])
            demand[q] -= a
            if y > a and held[U3] > 0:
                a += _draw(down, q, n, held, U3, y - a)
            if a > 0:
                left -= a
                into[q] += a
                room = _note(log, last, n, k, q, a)
        held[WORK] -= np.int64(at - lo)
        total += supply[k] - left
        supply[k] = left
    return total


@inner
def _relay_to_demands(n, t, j, lo, hi, goal, mid, demand, into, up, held, wanting, spent, last, log, reads):
    """What t holds goes over other tokens to those whose own demand is still open."""
    total = np.int64(0)
    count = U0
    for q in range(lo, hi):
        if demand[q] > 0:
            wanting[count] = np.int64(q)
            count += U1
    room = np.uint64(last[n]) < LOG * n
    for step in range(hi - lo):
        k = hi - U1 - step
        if count == U0 or held[U0] == 0 or total >= goal or not room or held[WORK] <= 0:
            break
        offer = np.int64(0) if k == j else _offer(k, t, n, up, held)
        if offer == 0:
            continue
        left = offer
        held[WORK] -= np.int64(count)
        kept = U0
        _spend(log, last, k, spent)
        before = last[k]
        for z in range(count):
            q = np.uint64(wanting[z])
            y = min(min(left, mid[k * n + q] - spent[q]), demand[q]) if q != k and room else np.int64(0)
            if COUNTING:
                reads[HOPS] += U1
            if y > 0:
                left -= y
                into[q] += y
                demand[q] -= y
                room = _note(log, last, n, k, q, y)
            if demand[q] > 0:
                wanting[kept] = np.int64(q)
                kept += U1
        count = kept
        _unspend(log, before, spent)
        total += offer - left
        _bring(k, t, n, up, held, offer - left)
    return total


@inner
def _hub_to_hub(n, t, j, lo, hi, goal, mid, into, up, down, held, wanting, spent, last, log, reads):
    """What t still holds goes to j: over one token, then over two."""
    total = np.int64(0)
    count = U0
    for k in range(lo, hi):
        if k == t or k == j:
            continue
        y = min(_could(up, k, n, held, U0), _could(down, k, n, held, U3))
        if y > 0:
            _draw(up, k, n, held, U0, y)
            _draw(down, k, n, held, U3, y)
            total += y
        if down[k] | down[n + k] | down[U2 * n + k]:
            wanting[count] = np.int64(k)
            count += U1
    room = np.uint64(last[n]) < LOG * n
    for step in range(hi - lo):
        k = hi - U1 - step
        if held[U0] == 0 or held[U3] == 0 or total >= goal or not room or held[WORK] <= 0:
            break
        offer = np.int64(0) if k == j else _offer(k, t, n, up, held)
        if offer == 0:
            continue
        row = k * n
        held[WORK] -= np.int64(count)
        _spend(log, last, k, spent)
        before = last[k]
        y = min(min(offer, mid[row + j] - spent[j]), _staying(held, U3))
        _stay(held, U3, y)
        left = offer - y
        kept = U0
        for z in range(count):
            q = np.uint64(wanting[z])
            y = min(left, mid[row + q] - spent[q])
            if COUNTING:
                reads[HOPS] += U1
            if y > 0 and q != k:
                y = _draw(down, q, n, held, U3, y)
                left -= y
                into[q] += y
            if down[q] | down[n + q] | down[U2 * n + q]:
                wanting[kept] = np.int64(q)
                kept += U1
        count = kept
        _unspend(log, before, spent)
        total += offer - left
        _bring(k, t, n, up, held, offer - left)
    return total


@inner
def _hand(n, first, last, k, t, j, most, caps, room, lines, tier, into, out, held, reads):
    """At most ``most`` goes between k and other tokens, over k's line of ``caps``; whoever takes it in is noted.

    ``out``: from k to the others; otherwise from the others to k.
    """
    row, left, at = k * n, most, first
    for r in range(first, last):
        if left == 0:
            break
        at = r
        y = min(left, caps[row + r])
        if COUNTING:
            reads[HOPS] += U1
        if y == 0 or r == j or r == k or r == t:
            continue
        a = min(y, room[r])
        room[r] -= a
        if y > a and held[tier] > 0:
            a += _draw(lines, r, n, held, tier, y - a)
        left -= a
        into[r if out else k] += a
    held[WORK] -= np.int64(at - first)
    return most - left


@inner
def _over_spread(n, causal, t, j, lo, hi, goal, high, supply, demand, into, up, down, held, reads):
    """What tokens hold already goes one hop further in the block where t spreads, then straight down.

    The tokens' own rows of that block carry nothing else. What they hold came down in the steps above it.
    """
    total = np.int64(0)
    for step in range(hi - lo):
        k = hi - U1 - step
        if total >= goal or held[WORK] <= 0:
            break
        if k == t or k == j:
            continue
        offer = supply[k] + _could_near(up, k, n, held, U0)
        if offer == 0:
            continue
        y = min(min(offer, high[k * n + j]), _staying(held, U3))
        _stay(held, U3, y)
        left = offer - y
        left -= _hand(n, lo, k if causal else hi, k, t, j, left, high, demand, down, U3, into, True, held, reads)
        sent = offer - left
        own = min(sent, supply[k])
        supply[k] -= own
        _draw_near(up, k, n, held, U0, sent - own)
        total += sent
    return total


@inner
def _over_gather(n, causal, t, j, lo, hi, goal, l3, supply, demand, into, up, down, held, reads):
    """The same at the other end: tokens that can still hand something to j take it in where j gathers."""
    total = np.int64(0)
    for q in range(lo, hi):
        if total >= goal or held[WORK] <= 0:
            break
        if q == t or q == j:
            continue
        want = demand[q] + _could_near(down, q, n, held, U3)
        if want == 0:
            continue
        y = min(min(want, l3[q * n + t]), _staying(held, U0))
        _stay(held, U0, y)
        into[q] += y
        left = want - y
        left -= _hand(n, q + U1 if causal else lo, hi, q, t, j, left, l3, supply, up, U0, into, False, held, reads)
        sent = want - left
        own = min(sent, demand[q])
        demand[q] -= own
        _draw_near(down, q, n, held, U3, sent - own)
        total += sent
    return total


@inner
def _overloaded(n, t, j, lo, hi, x, u, chain, supply, into, up):
    """Whether some token's own edges would have to carry more than the narrowest of them can."""
    for k in range(lo, hi):
        load = min(x[k], chain[k]) - supply[k] + into[k]
        load += u[k] - up[k] + u[n + k] - up[n + k] + u[U2 * n + k] - up[U2 * n + k]
        if load > chain[k] and k != t and k != j:
            return True
    return False


def relay(
    n, causal, t, x, u, above, d, l1, l2, l3, below, mid, high, chain, upper, lower, begin, stride, work,
    supply, demand, into, up, down, wanting, spent, last, log, held, reads,
):  # fmt: skip
    """Lower bounds of the flows from output t to every ``stride``-th input from ``begin`` on, in place in ``lower``.

    Inputs whose ``lower`` is ``upper`` already are left as they are. ``x`` [n] is t's row of the highest step, ``u``
    [3, n] its row in the three tiers below it, ``above`` [3] its budgets; ``d`` [n, n] is the lowest step transposed,
    ``l1 l2 l3`` [n, n] the tiers above it transposed, ``below`` [n, 3] the budgets of each input; ``mid`` [n, n] is the
    block between, ``high`` [n, n] the block in which t spreads, ``chain`` [n] the narrowest of each token's own edges.
    ``causal``: no token looks at a later one. ``work`` is how many edges between tokens are looked at for one input, a
    few more at most, before it is left as it is. ``spent`` must be zero and is so again.
    """
    final = t if causal else n
    for j in range(begin, final, stride):
        if lower[j] >= upper[j] or j == t:
            continue
        lo = j if causal else U0
        hi = t + U1 if causal else n
        for i in range(U3):
            held[i] = above[i]
            held[U3 + i] = below[j * U3 + i]
        for k in range(n):
            last[k] = -1
        last[n] = 0
        held[WORK] = np.int64(work)
        goal = upper[j]
        if COUNTING:
            reads[HOPS] += np.uint64(5) * (hi - lo)
        total = _straight(n, t, j, lo, hi, x, u, d, l1, l2, l3, chain, supply, demand, into, up, down, held)
        if total < goal:
            total += _relay_supplies(
                n, causal, t, j, lo, hi, goal - total, mid, supply, demand, into, down, held, last, log, reads
            )  # fmt: skip
        if total < goal:
            total += _relay_to_demands(
                n, t, j, lo, hi, goal - total, mid, demand, into, up, held, wanting, spent, last, log, reads
            )  # fmt: skip
        if total < goal:
            total += _hub_to_hub(
                n, t, j, lo, hi, goal - total, mid, into, up, down, held, wanting, spent, last, log, reads
            )  # fmt: skip
        if total < goal:
            total += _over_spread(
                n, causal, t, j, lo, hi, goal - total, high, supply, demand, into, up, down, held, reads
            )  # fmt: skip
        if total < goal:
            total += _over_gather(
                n, causal, t, j, lo, hi, goal - total, l3, supply, demand, into, up, down, held, reads
            )  # fmt: skip
        if total > lower[j] and not _overloaded(n, t, j, lo, hi, x, u, chain, supply, into, up):
            lower[j] = total
