"""A slice of greedy_matrix.py: with and without a draft, the same greedy text."""

import os

import pytest

from greedy_common import DRAFT, GEMMA, SMOLLM2, TARGET, levels, run, spoiled

BUILD = os.environ.get("TANDEM_BUILD")
MODELS = os.environ.get("TANDEM_MODELS")
pytestmark = pytest.mark.skipif(not BUILD or not MODELS, reason="TANDEM_BUILD or TANDEM_MODELS names no folder")


def model(name):
    path = os.path.join(MODELS, name)
    if not os.path.exists(path):
        pytest.skip(f"{name} is not in TANDEM_MODELS")
    return path


@pytest.fixture(scope="module")
def bad_drafts(tmp_path_factory):
    """Made once for all tests that ask."""
    folder, made = tmp_path_factory.mktemp("drafts"), {}

    def get(name):
        if name not in made:
            made[name] = spoiled(model(name), str(folder / name))
        return made[name]

    yield get
    for path in made.values():
        os.remove(path)


def expect_same(runs):
    different = [(r.prompt, r.k) for r in runs if not r.same]
    assert not different, f"the text differs for (prompt, k) {different}"


def test_smollm2_as_its_own_draft():
    path = model(SMOLLM2)
    runs = run(BUILD, path, path, 2, 64, 96, [1, 2, 3, 4, 5, 8, 16], ["code", "chinese"])
    expect_same(runs)
    for r in runs:  # nothing that the target itself proposes is refused
        assert r.accepted == r.drafted
        assert r.rounds == -(-64 // (r.k + 1))


def test_smollm2_with_a_bad_draft_at_every_level(bad_drafts):
    path, texts = model(SMOLLM2), {}
    for level in levels(BUILD):
        for threads in (1, 2):
            # plain C is an order of magnitude slower
            ks, prompts = ([4], ["code"]) if level == "ref" else ([1, 4, 16], ["code", "chinese"])
            runs = run(BUILD, path, bad_drafts(SMOLLM2), threads, 24, 32, ks, prompts, level)
            expect_same(runs)
            for r in runs:
                assert texts.setdefault(r.prompt, r.hash) == r.hash, (level, threads, r)
            assert 0 < sum(r.accepted for r in runs) < sum(r.drafted for r in runs)


def test_gemma_past_its_window(bad_drafts):
    path = model(GEMMA)
    runs = run(BUILD, path, bad_drafts(GEMMA), 2, 32, 500, [4, 16], ["prose"])
    expect_same(runs)
    assert runs[0].n_prompt == 500  # 32 more pass the window of 512
    assert 0 < sum(r.accepted for r in runs) < sum(r.drafted for r in runs)


@pytest.mark.parametrize("cache", ["q8_0", "q4_0"])
def test_quantised_caches(bad_drafts, cache):
    """What was drafted and dropped leaves no trace in blocks that hold 32 positions."""
    path, texts = model(SMOLLM2), {}
    for level in levels(BUILD)[-2:]:
        runs = run(BUILD, path, bad_drafts(SMOLLM2), 2, 32, 96, [3, 16], ["code", "chinese"], level, cache)
        expect_same(runs)
        for r in runs:
            assert texts.setdefault(r.prompt, r.hash) == r.hash, (level, r)
        assert 0 < sum(r.accepted for r in runs) < sum(r.drafted for r in runs)


def test_default_pair():
    runs = run(BUILD, model(TARGET), model(DRAFT), 2, 48, 64, [4, 8], ["code"])
    expect_same(runs)
    assert sum(r.accepted for r in runs) > sum(r.drafted for r in runs) / 4  # the pair fits together
