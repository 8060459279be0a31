"""Windows: weights that make every row count once on average, rows gathered from the right place.

Every possible window is built, so the checks are exact. The paper's published code has the weights
wrong when T < 3S; here S runs from 1 to T.
"""

import functools

import jax
import numpy as np
import pytest
import scipy.stats

import sojourn as sj
from sojourn.series import Chances, Series, Windows, draw, gather, layout, tile
from sojourn.series import windows as windows_module
from sojourn.series.windows import pick, place, window_rows

SCHEMES = ("uniform", "partition")
BUFFERS = (0, 1, 3, 100)
LAGS = (0, 2)
# Rows after the lags: one series of every length, and several of unequal lengths.
SINGLE = tuple((T,) for T in range(1, 14))
SEVERAL = ((7, 3, 12), (1, 9), (5, 5), (2, 1, 8, 4), (10, 1))


@pytest.fixture
def eager(monkeypatch):
    """Run the code on NumPy: the thousands of shapes of these tests are not compiled one by one.

    It is stricter, too: NumPy refuses indices beyond the end, which JAX moves inside.
    """
    monkeypatch.setattr(windows_module, "jnp", np)


def make_series(lengths, num_lags):
    """Series whose entries tell where they are: 1000 · series + row, and its negative."""
    rows = [1000.0 * i + np.arange(T + num_lags) for i, T in enumerate(lengths)]
    values = np.concatenate(rows)
    values = np.column_stack([values, -values])
    return Series(values, tuple(map(len, rows)), ("a", "b"), "none")


def every_window(series, num_lags, windows):
    """Return all windows, their rows and the batch gathered from them."""
    where = layout(series, num_lags, windows)
    rows = window_rows(series, num_lags, windows)
    drawn = place(np.arange(where.last_window[-1]), where, windows, rows)
    return drawn, rows, collect(series, drawn, rows, num_lags, windows)


def collect(series, drawn, rows, num_lags, windows):
    pad = min(series.lengths) - num_lags < rows
    values = series.values.T.copy()
    return gather(values, drawn, rows, num_lags=num_lags, windows=windows, pad=pad)


def weight_of_rows(lengths, drawn, weight):
    """Add up the weights of all windows for each row of each series."""
    total = [np.zeros(T) for T in lengths]
    for w, (sequence, shift) in enumerate(zip(drawn.sequence, drawn.shift, strict=True)):
        inside = min(len(weight), lengths[sequence] - shift)
        total[sequence][shift : shift + inside] += weight[:inside, w]
        assert not np.any(weight[inside:, w])
    return total


def check_place(lengths, num_lags, buffer, drawn, rows, batch):
    """Check where each window lies, from the rows that were gathered."""
    assert batch.y.shape == (rows + num_lags, 2, len(drawn.start))
    np.testing.assert_array_equal(batch.y[:, 1], -batch.y[:, 0])
    for w, y in enumerate(batch.y[:, 0].T):
        sequence, row = divmod(int(y[0]), 1000)
        T = lengths[sequence]
        assert sequence == drawn.sequence[w]
        assert batch.first[w] == (row == 0)
        # Real rows without a gap, then padding, only where the series is shorter than the window.
        real = min(rows, T) + num_lags
        np.testing.assert_array_equal(y[:real], y[0] + np.arange(real))
        assert np.all(np.isnan(y[real:]))
        assert row + real <= T + num_lags
        # Buffers as long as asked for, unless the series ends there.
        counts = np.flatnonzero(batch.weight[:, w])
        start, stop = row + counts[0], row + counts[-1] + 1
        assert len(counts) == stop - start
        assert (start, stop) == (drawn.start[w], drawn.stop[w])
        assert row <= max(start - buffer, 0)
        assert row + real - num_lags >= min(stop + buffer, T)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("lengths", [*SINGLE, *SEVERAL], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_row_counts_once_on_average(scheme, lengths):
    for num_lags in LAGS:
        series = make_series(lengths, num_lags)
        for S in range(1, max(lengths) + 1):
            for buffer in BUFFERS:
                windows = Windows(S, buffer, 1, scheme)
                drawn, rows, batch = every_window(series, num_lags, windows)
                count = len(drawn.start)
                for total in weight_of_rows(lengths, drawn, batch.weight):
                    np.testing.assert_allclose(total / count, 1.0, rtol=1e-13)
                check_place(lengths, num_lags, buffer, drawn, rows, batch)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("lengths", [*SINGLE, *SEVERAL], ids=str)
def test_windows_are_those_of_the_definition(lengths):
    """Uniform: every start. Partition: blocks of S rows, the last shorter. `MATH.md` §2.1, §2.3."""
    series = make_series(lengths, 0)
    for S in range(1, max(lengths) + 1):
        uniform, blocks = [], []
        for i, T in enumerate(lengths):
            s = min(S, T)
            uniform += [(i, t, t + s) for t in range(T - s + 1)]
            blocks += [(i, t, min(t + s, T)) for t in range(0, T, s)]
        for scheme, expected in (("uniform", uniform), ("partition", blocks)):
            drawn, _, _ = every_window(series, 0, Windows(S, 1, 1, scheme))
            found = zip(drawn.sequence, drawn.start, drawn.stop, strict=True)
            assert [tuple(map(int, f)) for f in found] == expected


@pytest.mark.usefixtures("eager")
def test_windows_near_an_end_are_moved_inside():
    """T = 10, S = 2, B = 3: eight rows each, though the first start has no row before it."""
    drawn, rows, batch = every_window(make_series((10,), 0), 0, Windows(2, 3))
    assert rows == 8
    np.testing.assert_array_equal(drawn.start, range(9))
    np.testing.assert_array_equal(drawn.shift, [0, 0, 0, 0, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(batch.y[0, 0], drawn.shift)
    np.testing.assert_array_equal(batch.y[-1, 0], drawn.shift + 7)
    np.testing.assert_array_equal(batch.first, drawn.shift == 0)


@pytest.mark.usefixtures("eager")
def test_a_series_shorter_than_a_window_is_padded():
    """Rows of the next series do not leak in; the lags come before the padding."""
    _, rows, batch = every_window(make_series((2, 6), 1), 1, Windows(5, 0))
    assert rows == 5
    short = [0, 1, 2, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(batch.y[:, 0, 0], short)
    np.testing.assert_array_equal(batch.y[:, 0, 1:].T, 1000 + np.arange(6) + [[0], [1]])
    np.testing.assert_array_equal(batch.first, [True, True, False])
    np.testing.assert_array_equal(batch.weight[:, 0], [3, 3, 0, 0, 0])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_batch_shares_the_weight(scheme):
    series = make_series((7, 3, 12), 0)
    _, _, one = every_window(series, 0, Windows(4, 2, 1, scheme))
    _, _, five = every_window(series, 0, Windows(4, 2, 5, scheme))
    np.testing.assert_allclose(five.weight, one.weight / 5, rtol=1e-15)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num_lags", LAGS)
@pytest.mark.parametrize("lengths", [(11,), (7, 3, 12)], ids=str)
def test_compiled_windows_are_the_same(lengths, num_lags, scheme, monkeypatch):
    """What the other tests check on NumPy is what JAX computes."""
    windows = Windows(4, 3, 1, scheme)
    series = make_series(lengths, num_lags)

    @functools.partial(jax.jit, static_argnums=2)
    def compiled(picked, values, rows):
        drawn = place(picked, layout(series, num_lags, windows), windows, rows)
        pad = min(series.lengths) - num_lags < rows
        return drawn, gather(values, drawn, rows, num_lags=num_lags, windows=windows, pad=pad)

    rows = window_rows(series, num_lags, windows)
    with jax.enable_x64(True):
        total = int(layout(series, num_lags, windows).last_window[-1])
        found = compiled(np.arange(total), series.values.T, rows)
    with monkeypatch.context() as patch:
        patch.setattr(windows_module, "jnp", np)
        drawn, _, batch = every_window(series, num_lags, windows)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves((drawn, batch)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("lengths", [(40,), (7, 3, 12)], ids=str)
def test_one_key_draws_the_same_rows_for_any_buffer(lengths, scheme):
    series = make_series(lengths, 2)
    cores = []
    with jax.enable_x64(True):
        for buffer in BUFFERS:
            windows = Windows(4, buffer, 32, scheme)
            where = layout(series, 2, windows)
            drawn = draw(jax.random.key(3), where, windows, window_rows(series, 2, windows))
            cores.append(np.stack([drawn.sequence, drawn.start, drawn.stop]))
    for core in cores[1:]:
        np.testing.assert_array_equal(core, cores[0])
    assert len(np.unique(cores[0], axis=1).T) > 3  # and they are not all one window


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_key_draws_other_windows(scheme):
    windows = Windows(4, 1, 32, scheme)
    with jax.enable_x64(True):
        where = layout(make_series((400,), 0), 0, windows)
        one, other = (np.asarray(pick(jax.random.key(k), where, windows)) for k in (0, 1))
    assert np.any(one != other)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("lengths", [(20,), (7, 3, 12)], ids=str)
def test_every_window_is_equally_likely(lengths, scheme):
    windows = Windows(4, 2, 20_000, scheme)
    series = make_series(lengths, 0)
    with jax.enable_x64(True):
        where = layout(series, 0, windows)
        drawn = draw(jax.random.key(11), where, windows, window_rows(series, 0, windows))
        total = int(where.last_window[-1])
    core = np.stack([drawn.sequence, drawn.start], axis=1)
    found, counts = np.unique(core, axis=0, return_counts=True)
    assert len(found) == total
    # Fixed seed; by chance one seed in a thousand would fall below.
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("lengths", [*SINGLE, *SEVERAL], ids=str)
@pytest.mark.parametrize("num_lags", LAGS)
def test_tiles_cover_every_row_once(num_lags, lengths):
    series = make_series(lengths, num_lags)
    for core in range(1, max(lengths) + 3):
        for buffer in BUFFERS:
            drawn, rows = tile(series.lengths, num_lags, core, buffer)
            assert rows == min(core + 2 * buffer, max(lengths))
            batch = collect(series, drawn, rows, num_lags, None)
            for total in weight_of_rows(lengths, drawn, batch.weight):
                np.testing.assert_array_equal(total, 1.0)
            check_place(lengths, num_lags, buffer, drawn, rows, batch)
            # Series by series, in order of time.
            begin = np.concatenate([[0], np.cumsum(lengths)[:-1]])[drawn.sequence] + drawn.start
            assert np.all(np.diff(begin) > 0)


def test_rows_of_a_window():
    series = make_series((4, 10), 2)
    assert window_rows(series, 2, Windows(3, 2)) == 7
    assert window_rows(series, 2, Windows(3, 5)) == 10


def test_full_windows():
    assert sj.Windows.full().is_full
    assert not sj.Windows(5).is_full


def test_length_up_to_the_longest_series_and_any_buffer():
    series = make_series((4, 10), 2)
    Windows(10, 1000).check(series, 2)
    with pytest.raises(ValueError, match=r"length=11 is longer than the longest series \(10 rows"):
        Windows(11).check(series, 2)


def test_windows_drawn_by_chances_count_every_row_once_on_average():
    """Blocks come as often as they should, and each weighs one over that."""
    series = make_series((7, 3, 12), num_lags=2)
    windows = Windows(4, buffer=1, batch=20_000, scheme="partition")
    where = layout(series, 2, windows)
    each = np.array([0.5, 0.1, 0.1, 0.02, 0.2, 0.08])
    assert where.last_window[-1] == len(each)
    drawn = draw(jax.random.key(0), where, windows, 6, Chances.of(each))
    seen = drawn.sequence * 100 + drawn.start // 4
    blocks, counts = np.unique(seen, return_counts=True)
    assert list(blocks) == [0, 1, 100, 200, 201, 202]
    assert scipy.stats.chisquare(counts, each * windows.batch).pvalue > 0.001
    # What the windows of a block are expected to weigh: every row of it one.
    batch = collect(series, drawn, 6, 2, windows)
    for i, block in enumerate(blocks):
        own = np.asarray(batch.weight)[:, seen == block]
        np.testing.assert_allclose(own[own > 0] * windows.batch * each[i], 1.0, rtol=1e-6)
        start = int(drawn.start[np.argmax(seen == block)])
        rows = min(4, (7, 3, 12)[block // 100] - start)
        assert ((own > 0).sum(0) == rows).all()


def test_a_number_rounded_up_to_the_sum_of_all_chances_draws_the_last_block(monkeypatch):
    series = make_series((8,), num_lags=0)
    windows = Windows(4, batch=3, scheme="partition")
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: np.ones(shape))
    drawn = draw(
        jax.random.key(0), layout(series, 0, windows), windows, 4, Chances.of(np.array([0.7, 0.3]))
    )
    np.testing.assert_array_equal(drawn.start, 4)
