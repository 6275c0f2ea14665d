"""The paper's tables as data."""

from dish.experiments import paper


def test_every_line_has_a_number_for_every_code_length():
    for table in paper.TABLES.values():
        for line in table.lines:
            for numbers in (line.map, line.precision, line.learned):
                assert len(numbers) in (0, len(table.bits))
    assert len(paper.sensitivity_runs(5)) == 5 * (len(paper.NUS) + 2 * len(paper.ITERATIONS))


def test_training_sizes_of_a_method():
    assert paper.training_sizes("cifar10_gist", "ksh") == [5000, None]
    assert paper.training_sizes("cifar10_gist", "minhash") == [None]


def test_the_tables_have_all_numbers_of_the_paper():
    counts = {name: sum(len(table.cells(line)) for line in table.lines) for name, table in paper.TABLES.items()}
    assert counts == {
        **{"table1": 11 * 5 + 3, "table2": 5 * 5, "table4": 7 * 4 + 2 * 3, "table5": 3 * 4 + 2 * 3, "table6": 6},
        **{"table7": 5 * 5 + 1 + 1 + 2, "table8": 12},
    }


def test_rivals_of_pretrained_networks_train_for_as_many_epochs_as_dish_d():
    table = paper.TABLES["table4"]
    epochs = {line.label: dict(line.params).get("epochs", 60) for line in table.lines}
    assert epochs["SFHC, NIN"] == 4 * epochs["DISH-D, 6conv"]
    assert epochs["DHN, AlexNet"] == 4 * epochs["DISH-D, AlexNet"]
    assert epochs["FTDE, VGG-16"] == 4 * epochs["DISH-D, VGG-16"]


def test_dish_k_as_printed():
    lines = [line for line in paper.TABLES["table1"].lines if line.label == "DISH-K, as printed"]
    assert {line.n_train for line in lines} == {5000, None}
    assert dict(lines[0].params) == {"init": "spectral-literal", "ridge": 0.0, "take_back": False}


def test_own_data_are_used_whole_and_centred():
    table = paper.TABLES["table7"]
    stand_in, own = (table.run(table.lines[-1], 64, 0, data) for data in (None, "mine"))
    assert (stand_in.n_queries, stand_in.n_database, stand_in.centred) == (1000, 100_000, False)
    assert (own.data, own.n_queries, own.n_database, own.centred) == ("mine", None, None, True)


def test_a_part_of_a_table(small):
    part = small.only(["dish_k"], [8])
    assert (part.bits, part.time_bits, [line.label for line in part.lines]) == ((8,), 8, ["DISH-K"])
    assert (part.lines[0].map, part.lines[0].seconds, part.lines[0].learned) == ((0.9,), None, (None,))
    assert [line.label for line in small.only(sizes=[500]).lines] == ["LSH"]
    assert small.only() == small
