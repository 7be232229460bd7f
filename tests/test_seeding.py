"""Seeds that never collide and never leak."""

from fastloader._seeding import DrawScope, current_draw_scope, derive_seed, draw_scope


def test_seeds_of_neighbouring_parts_differ():
    seeds = {
        derive_seed(base, rank, worker)
        for base in range(4)
        for rank in range(4)
        for worker in range(4)
    }

    assert len(seeds) == 64


def test_a_draw_scope_ends_with_its_block():
    with draw_scope(DrawScope(seed=1, epoch=2)):
        assert current_draw_scope() == DrawScope(seed=1, epoch=2)

    assert current_draw_scope() is None
