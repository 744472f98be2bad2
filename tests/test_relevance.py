from __future__ import annotations

import json

import numpy as np
import pytest

from attnflow import Attention, Relevance, blankout, direct, flow, gradient, raw, rollout
from attnflow.errors import FileError, SelectionError, ShapeError
from attnflow.tokens import Tokens
from tests.conftest import random_attention

TOKENS = Tokens(
    ["[CLS]", "cab", "##inets", "are"], special=[True, False, False, False], word_ids=[None, 0, 0, 1], marks={"cls": 0}
)
SCORES = np.arange(32, dtype=float).reshape(2, 4, 4) / 100
ALL = Relevance(SCORES, TOKENS, (0, 5), "raw", {"residual": 0.5}, "m")


def test_at_takes_layers_by_true_number_and_positions_by_name():
    assert np.array_equal(ALL.at(layer=5).scores, SCORES[1:])
    one = ALL.at(layer=-1, position="cls")
    assert np.array_equal(one.scores, SCORES[1:, 0])
    assert one.settings["position_token"] == "[CLS]"
    with pytest.raises(SelectionError, match="Already at position 0"):
        one.at(position=1)


def test_words_sum_keys_and_average_queries():
    words = ALL.words()
    assert words.tokens == words.rows == ("[CLS]", "cab##inets", "are")
    assert words.scores.shape == (2, 3, 3)
    expected = (SCORES[0, 1, 1] + SCORES[0, 1, 2] + SCORES[0, 2, 1] + SCORES[0, 2, 2]) / 2
    assert words.scores[0, 1, 1] == pytest.approx(expected)
    assert ALL.at(position=3).words().scores.shape == (2, 3)


def test_a_missing_score_is_missing_in_its_own_word_only():
    scores = SCORES.copy()
    scores[0, 1, 3] = np.nan
    words = Relevance(scores, TOKENS, (0, 5), "raw").words().scores
    assert np.argwhere(np.isnan(words)).tolist() == [[0, 1, 2]]
    assert np.allclose(words[~np.isnan(words)], ALL.words().scores[~np.isnan(words)])


def test_rows_that_sum_to_one_still_do_as_words():
    scores = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 4))
    assert np.allclose(Relevance(scores, TOKENS, (0, 1), "raw").words().scores.sum(-1), 1)


def test_dropping_special_tokens_records_their_share():
    kept = ALL.drop_special()
    assert kept.tokens == kept.rows == ("cab", "##inets", "are")
    assert np.array_equal(kept.scores, SCORES[:, 1:, 1:])
    assert kept.settings["dropped"] == pytest.approx(SCORES[1, 1:, 0].sum() / SCORES[1, 1:].sum())
    one = ALL.at(position=0).drop_special()
    assert one.settings["dropped"] == pytest.approx(SCORES[1, 0, 0] / SCORES[1, 0].sum())
    with pytest.raises(SelectionError, match=r"All 1 outputs are special tokens.*at\(position=0\)\.drop_special"):
        Relevance(SCORES[:, :1], TOKENS, (0, 5), "raw", queries=TOKENS.take([0])).drop_special()
    with pytest.raises(SelectionError, match="All 1 tokens are special"):
        Relevance(np.ones((1, 1)), Tokens(["</s>"], special=[True]), (0,), "raw").drop_special()


@pytest.mark.parametrize("layer", [0, 5])
@pytest.mark.parametrize("position", [None, 2])
def test_the_dropped_share_is_that_of_the_layer_and_output_that_are_shown(layer, position, tmp_path):
    first = ALL.at(layer=layer, position=position).drop_special()
    place = None if position is None else position - 1  # among the rows that are left
    then = ALL.drop_special().at(layer=layer, position=place)
    assert first.dropped == pytest.approx(then.dropped)
    assert then.position == position  # of the input as it was
    at = ALL.layers.index(layer)
    rows = SCORES[at, 1:] if position is None else SCORES[at, [position]]
    assert first.dropped == pytest.approx(rows[:, 0].sum() / rows.sum())
    kept = ALL.drop_special()
    kept.save(tmp_path / "r")
    assert Relevance.load(tmp_path / "r").at(layer=layer, position=place).dropped == pytest.approx(then.dropped)
    assert kept.words().at(layer=layer).dropped == pytest.approx(kept.at(layer=layer).words().dropped)


def test_top_breaks_ties_in_text_order():
    r = Relevance(np.array([[0.1, 0.4, 0.4, 0.1]]), TOKENS, (0,), "raw")
    assert r.top(3) == [("cab", 0.4), ("##inets", 0.4), ("[CLS]", 0.1)]
    with pytest.raises(SelectionError, match="one output position, and there are 4. Choose one"):
        ALL.top()
    assert r.top(0) == []
    with pytest.raises(SelectionError, match="k=-1, but at least 0"):
        r.top(-1)


def test_a_frame_has_one_line_a_score():
    frame = ALL.to_frame()
    assert list(frame.columns) == ["layer", "query", "query_token", "key", "token", "score"]
    assert len(frame) == 32
    line = frame[(frame.layer == 5) & (frame["query"] == 2) & (frame.key == 3)].iloc[0]
    assert (line.query_token, line.token, line.score) == ("##inets", "are", SCORES[1, 2, 3])
    assert list(ALL.at(position=1).to_frame().columns) == ["layer", "key", "token", "score"]


def test_files(tmp_path):
    path = tmp_path / "r.safetensors"
    ALL.save(path)
    after = Relevance.load(path)
    assert np.array_equal(after.scores, ALL.scores)
    assert (after.tokens, after.layers, after.method, after.settings, after.model, after.queries) == (
        ALL.tokens, ALL.layers, ALL.method, ALL.settings, ALL.model, ALL.queries,
    )  # fmt: skip
    assert after.tokens.special == TOKENS.special
    with pytest.raises(FileError, match="exists already"):
        ALL.save(path)


def test_settings_of_every_kind_fit_into_json():
    r = Relevance(np.ones((1, 4)), TOKENS, (0,), "raw", {"a": np.float64(1), "b": (1, np.arange(2)), "c": {2: int}})
    assert json.loads(r.to_json())["settings"] == {"a": 1.0, "b": [1, [0, 1]], "c": {"2": "<class 'int'>"}}


def test_the_share_of_special_tokens():
    assert Relevance(np.array([[3.0, 1.0, 0.0, 0.0]]), TOKENS, (0,), "raw").special_share == 0.75
    assert Relevance(np.zeros((1, 4)), TOKENS, (0,), "raw").special_share == 0


def test_repr_is_short():
    assert repr(ALL).startswith("Relevance(raw, 2 layers × 4 outputs × 4 inputs, model=m; careful: later tokens score")
    assert "\n" not in repr(ALL)
    plain = Relevance(SCORES[..., [1, 3, 0, 2]] * [[[1], [0], [0], [0]]], TOKENS, (0, 5), "raw", {}, "m")
    assert repr(plain) == "Relevance(raw, 2 layers × 4 outputs × 4 inputs, model=m)"
    assert repr(raw([np.eye(3)], position=2)) == "Relevance(raw, 1 layer, position 2 × 3 inputs)"
    assert len(ALL) == 2


@pytest.mark.parametrize(
    ("scores", "layers", "text"),
    [
        (np.zeros(4), (0,), "1 axes"),
        (np.zeros((2, 4)), (0,), "2 layers, but 1 layer numbers"),
        (np.zeros((1, 3)), (0,), "3 columns, but there are 4 tokens"),
        (np.zeros((1, 3, 4)), (0,), "3 rows, but there are 4 row names"),
    ],
)
def test_shapes_are_checked(scores, layers, text):
    with pytest.raises(ShapeError, match=text):
        Relevance(scores, TOKENS, layers, "raw")


def test_plain_strings_are_taken_as_tokens():
    assert Relevance(np.zeros((1, 2)), ["a", "b"], [0], "raw").tokens.special == (False, False)


TYPED = (
    "position", "position_token", "unit", "dropped", "target", "heads", "residual", "start_layer", "edges", "rescaled",
    "notes", "report",
)  # fmt: skip


def typed(r: Relevance) -> dict[str, object]:
    return {name: getattr(r, name) for name in TYPED}


def test_what_something_depends_on_is_a_field_and_settings_repeat_it():
    f = flow(random_attention(0, 3, 4), tokens=TOKENS, position=-1, residual=0.2, start_layer=1, normalize=True)
    assert (f.position, f.position_token, f.unit, f.heads, f.edges) == (3, "are", "token", "mean", "attention")
    assert (f.residual, f.start_layer, f.rescaled) == (0.2, 1, True)
    assert f.report is not None and f.settings["report"] == f.report.to_dict()
    told = {name: f.settings[name] for name in ("position", "position_token", "residual", "start_layer", "heads")}
    assert told == {name: getattr(f, name) for name in told}
    shaped = f.words().drop_special()
    assert (shaped.unit, shaped.settings["words"]) == ("word", True)
    assert shaped.dropped == shaped.settings["dropped"] == pytest.approx(f.words().special_share)
    assert shaped.words() is shaped


@pytest.mark.parametrize("method", [raw, rollout, flow, direct])
def test_every_method_says_what_it_read(method):
    heads = np.stack([random_attention(seed, 2, 4) for seed in (0, 1)], 1)
    noted = Attention.of(heads, heads="all", notes=("Layer 7 has no attention.",))
    r = method(noted, heads=1)
    assert (r.heads, r.edges, r.notes, r.position) == (1, "attention", noted.notes, None)
    assert r.at(position=2).position == method(noted, heads=1, position=2).position == 2


def test_gradients_and_blank_out_say_what_they_explain():
    from attnflow import demo

    model, tokenizer = demo.model(), demo.tokenizer()
    g, b = (method(model, tokenizer, demo.SENTENCE) for method in (gradient, blankout))
    assert g.target == g.settings["target_label"] == b.target
    assert (g.heads, g.edges, g.residual) == (None, None, None)
    by_word = blankout(model, tokenizer, demo.SENTENCE, unit="word")
    assert by_word.unit == "word"
    assert "words" not in by_word.settings


def test_settings_decide_nothing():
    f = flow(random_attention(0, 3, 4), tokens=TOKENS, position=0).words()
    odd = dict.fromkeys(f.settings, "nonsense")
    object.__setattr__(f, "settings", odd)
    assert repr(f) == "Relevance(flow, 3 layers, position 0 × 3 inputs)"
    assert "nonsense" not in f.plot().get_title()


def test_files_keep_the_fields(tmp_path):
    w = random_attention(0, 3, 4)
    shares = np.full((3, 4), 0.25)
    for i, r in enumerate((ALL, flow(w, tokens=TOKENS, position=1, residual=shares).words().drop_special())):
        r.save(tmp_path / str(i))
        after, before = typed(Relevance.load(tmp_path / str(i))), typed(r)
        assert np.array_equal(after.pop("residual"), before.pop("residual"))
        assert after == before


def test_settings_only_tell(tmp_path):
    """No field is read from them, neither in a record built by hand nor in one from a file."""
    said = {"position": 1, "words": True, "dropped": 0.25, "heads": [0, 2], "residual": 0.5, "normalize": True}
    r = Relevance(SCORES[:, 1], TOKENS, (0, 5), "flow", {**said, "target_label": "plural", "notes": ["sink"]})
    r.save(tmp_path / "told")
    for one in (r, Relevance.load(tmp_path / "told")):
        assert typed(one) == typed(Relevance(SCORES[:, 1], TOKENS, (0, 5), "flow"))


def test_settings_of_another_kind_are_left_alone():
    r = Relevance(SCORES, TOKENS, (0, 5), "mine", {"position": "everywhere", "heads": None, "notes": "none"})
    assert (r.position, r.heads, r.notes) == (None, None, ())
    assert r.settings == {"position": "everywhere", "heads": None, "notes": "none"}


def test_a_unit_that_is_not_known():
    with pytest.raises(SelectionError, match="unit='letter' is not known. Use one of: token, word"):
        Relevance(SCORES, TOKENS, (0, 5), "raw", unit="letter")
