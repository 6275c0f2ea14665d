"""The paper's tables as data."""

from dish.experiments import paper


def test_every_line_has_a_number_for_every_code_length():
    for table in paper.TABLES.values():
        for line in table.lines:
            assert not line.map or len(line.map) == len(table.bits)
    assert len(paper.sensitivity_runs(5)) == 5 * (len(paper.NUS) + 2 * len(paper.ITERATIONS))


def test_training_sizes_of_a_method():
    assert paper.training_sizes("cifar10_gist", "ksh") == [5000, None]
    assert paper.training_sizes("cifar10_gist", "minhash") == [None]
