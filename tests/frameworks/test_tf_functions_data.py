"""`shard` gives all elements to some rank, each to one, and as many batches to all."""

import pytest

COUNTS = (0, 1, 11, 24)
EVEN = ("drop", "repeat", None)


def parts(job, case, key, place=0):
    return [answer[key][place] for answer in job.of(case)]


def lost(count, size, batch=1):
    """How many elements are left out, at least, for as many batches on each rank."""
    least, rest = divmod(count, size)
    return rest if rest and -(-least // batch) != -(-(least + 1) // batch) else 0


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("count", COUNTS)
def test_rank_r_gets_every_element_r_of_as_many_as_there_are_ranks(tf_job, count, even):
    size = tf_job.size
    key = f"{count} {even}"
    known, unknown = (parts(tf_job, "elements_dealt", key, place) for place in (0, 1))
    dealt = count - lost(count, size) if even == "drop" else count
    for rank, part in enumerate(known):
        mine = list(range(rank, dealt, size))
        assert part[: len(mine)] == unknown[rank][: len(mine)] == mine
        again = even == "repeat" and bool(count) and rank >= count % size > 0
        assert len(part) == len(unknown[rank]) == len(mine) + again
        assert set(part) | set(unknown[rank]) <= set(range(count))
    cardinalities = parts(tf_job, "elements_dealt", key, 2)
    assert cardinalities == [len(part) for part in known]
    if even:
        assert len(set(cardinalities)) == 1


def test_data_without_an_end_stays_so(tf_job):
    for rank, answer in enumerate(tf_job.of("elements_dealt")):
        assert answer["endless"] == [(rank + i * tf_job.size) % 5 for i in range(7)]


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("count", COUNTS)
def test_batches_are_as_many_on_all_ranks_and_together_those_of_one_process(tf_job, count, even):
    size = tf_job.size
    key = f"{count} {even}"
    known, unknown = (parts(tf_job, "batches_cut", key, place) for place in (0, 1))
    counts = {len(part) for part in known} | {len(part) for part in unknown}
    if even:
        assert len(counts) == 1
    dealt = count - lost(count, size, 3) if even == "drop" else count
    for ways in (known, unknown):
        for number in range(max(counts)):
            joined = {each for part in ways for each in part[number : number + 1] for each in each}
            whole = set(range(number * 3 * size, min((number + 1) * 3 * size, dealt)))
            assert joined >= whole
            assert even == "repeat" or joined == whole
    assert parts(tf_job, "batches_cut", key, 2) == [len(part) for part in known]


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("count", COUNTS)
def test_joined_batches_are_divided_by_rows(tf_job, count, even):
    size = tf_job.size
    answers = [answer[f"{count} {even}"] for answer in tf_job.of("joined_batches_divided")]
    batches = [list(range(first, min(first + 6, count))) for first in range(0, count, 6)]
    if even == "drop":
        batches = [batch for batch in batches if len(batch) >= size]
    for rank, part in enumerate(answers):
        want = [batch[rank::size] for batch in batches]
        if even == "repeat":
            want = [
                mine or batch[rank % len(batch) :: size]
                for mine, batch in zip(want, batches, strict=True)
            ]
        assert part == [mine for mine in want if mine]


def test_batches_of_a_static_size_stay_so(tf_job):
    for answer in tf_job.of("joined_batches_divided"):
        assert answer["static"] == [[12 // tf_job.size], 2]


def test_arrays_are_dealt_together(tf_job):
    size = tf_job.size
    answers = tf_job.of("arrays_dealt")
    for rank, (found, shuffled, pairs, alike, is_view) in enumerate(answers):
        assert pairs
        assert alike
        assert is_view
        for even in EVEN:
            for batch in (1, 4):
                part = found[f"{even} {None if batch == 1 else batch}"]
                left_out = lost(23, size, batch)
                want = list(range(rank, 23 - (left_out if even == "drop" else 0), size))
                if even == "repeat" and left_out and rank >= 23 % size:
                    want.append((len(want) * size + rank) % 23)
                assert part == want
        assert len(shuffled) == 23 // size
    together = [each for answer in answers for each in answer[1]]
    assert len(set(together)) == len(together) == 23 - lost(23, size)
    assert together != sorted(together)


def test_all_ranks_shuffle_alike_and_anew_in_every_epoch(tf_job):
    answers = tf_job.of("elements_shuffled")
    for name in answers[0]:
        epochs = [[each for answer in answers for each in answer[name][epoch]] for epoch in (0, 1)]
        for elements in epochs:
            assert sorted(elements) == list(range(24)), name
        assert epochs[0] != epochs[1], name
    for answer in answers:
        assert answer["all"] == answer["again"]


def test_elements_may_be_tuples_dicts_ragged_or_sparse(tf_job):
    size = tf_job.size
    count = 2 * size + 1
    for rank, (taken, cut, dense, divided) in enumerate(tf_job.of("elements_of_other_kinds")):
        mine = [[i, [float(i)] * (i % 3)] for i in range(rank, 2 * size if size > 1 else 3, size)]
        assert taken == cut == mine
        assert dense == [i for i, _ in mine]
        rows = list(range(rank, count, size))
        assert divided == [[len(rows), rows]]


def test_a_process_set_shares_among_its_ranks(tf_job):
    answers = tf_job.of("parts_of_a_set")
    if tf_job.size < 3:
        assert answers == [list(range(r, 4, tf_job.size)) for r in range(tf_job.size)]
    else:
        assert answers[0] == [0, 2]
        assert "does not belong to process set" in answers[1]
        assert answers[2] == [1, 3]


def test_what_would_give_ranks_the_same_elements_is_refused(tf_job):
    for answer in tf_job.of("parts_refused"):
        assert len(set(answer[0])) == len(answer[0]) == 8 - 8 % tf_job.size
        if tf_job.size == 1:
            continue
        names, text = answer[1]
        assert "MismatchError" in names
        assert "shuffled with seeds [(1, 1)] on rank 1, [(0, 1)] on rank 0" in text
        names, text = answer[2]
        assert "UsageError" in names
        assert "no fixed order" in text


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (3, "give shuffle= the number of elements in the buffer"),
        (4, "even is 'often'; choose 'drop', 'repeat' or None"),
        (5, "batch_size is 0"),
        (6, "give one of the two"),
        (9, "batched is for data sets of batches"),
        (10, "different numbers of rows: [4, 5]"),
        (11, "without dimensions"),
        (12, "got list_iterator"),
        (13, "no array to divide"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(tf_job, place, words):
    for answer in tf_job.of("parts_refused"):
        names, text = answer[place]
        assert "UsageError" in names
        assert words in text
        assert "\n" not in text


def test_elements_without_rows_are_refused_where_there_is_something_to_divide(tf_job):
    for answer in tf_job.of("parts_refused"):
        for names, text in answer[7:9]:
            assert ("UsageError" in names and "with rows" in text) or tf_job.size == 1


def test_ranks_with_fewer_batches_join(tf_job):
    size = tf_job.size
    for rank, (sums, last) in enumerate(tf_job.of("parts_trained_on_with_join")):
        whole = [sum(range(1 + size * i, 1 + size * (i + 1))) for i in (0, 1)]
        extra = [2 * size + 1] if rank == 0 else []
        assert sums == [float(each) for each in whole + extra]
        assert 0 <= last < size


def test_every_name_can_be_imported(tf_job):
    assert tf_job.of("names_by_star") == [[]] * tf_job.size
