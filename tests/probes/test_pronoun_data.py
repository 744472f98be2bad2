from __future__ import annotations

import pytest

from attnflow.errors import InputError
from attnflow.probes.pronoun_data import read

WINOGENDER = (
    "sentid\tsentence\n"
    "technician.customer.1.female.txt\tThe technician told the customer that she could pay with cash.\n"
    "technician.someone.0.male.txt\tThe technician told someone that he had repaired it.\n"
    "nurse.patient.1.neutral.txt\tA patient asked the nurse whether their results were in.\n"
)
GAP = (
    "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    'test-1\tAnn "Bo" Lee met Eve Ray after she won.\tshe\t31\tAnn "Bo" Lee\t0\tFALSE\tEve Ray\t17\tTRUE\tu\n'
    "test-2\tBob met Jim, his son, and Al.\this\t13\tJim\t8\tTRUE\tBob\t0\tFALSE\tu\n"
    "test-3\tBob met Jim and he left.\the\t16\tBob\t0\tFALSE\tJim\t8\tFALSE\tu\n"
)


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_winogender(tmp_path):
    found = read(written(tmp_path / "all_sentences.tsv", WINOGENDER))
    assert [e.names for e in found] == [("technician", "customer"), ("technician", "someone"), ("patient", "nurse")]
    assert [e.gold for e in found] == [1, 0, 0], "the participant may stand first"
    assert [e.text[slice(*e.pronoun)] for e in found] == ["she", "he", "their"]
    assert [e.group for e in found] == ["female", "male", "neutral"]
    assert len(read(tmp_path / "all_sentences.tsv", 2)) == 2


def test_gap_keeps_whole_names_and_leaves_out_what_is_neither(tmp_path):
    found = read(written(tmp_path / "gap-test.tsv", GAP))
    assert [e.names for e in found] == [('Ann "Bo" Lee', "Eve Ray"), ("Bob", "Jim")]
    assert [e.gold for e in found] == [1, 1] and [e.group for e in found] == ["female", "male"]


@pytest.mark.parametrize(("text", "said"), [
    ("a\tb\n1\t2\n", "has the columns a, b; pronoun examples have sentid and sentence"),
    ("sentid\tsentence\nx.1\tHe left.\n", "line 2 has the sentid 'x.1'"),
    ("sentid\tsentence\na.b.0.male.txt\tThe a saw the b.\n", "line 2 has no pronoun that is known"),
    ("sentid\tsentence\na.b.0.male.txt\tThe c saw the b and he left.\n", "'a' is not in the text"),
    (GAP.replace("\t31\t", "\t30\t"), "line 2 says that 'she' stands at 30, and the text has ' sh' there"),
])  # fmt: skip
def test_what_does_not_fit_is_said_with_its_line(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        read(written(tmp_path / "x.tsv", text))


def test_winobias_goes_its_own_way(tmp_path):
    with pytest.raises(InputError, match="holds no WinoBias files"):
        read(tmp_path)
