// Parts with a position of a query or of a latent's key, and their turn by the angles of a row of the batch. Each kernel has its own
// `channel(is_query, start, c)`: channel `c` of the part with a position that begins at `start` of the queries, or of the latent's.

fn turned(is_query: bool, start: u32, c: u32, row: u32) -> f32 {
    let pairs = params.pe / 2u;
    let interleaved = params.interleaved != 0u;
    let second = select(c >= pairs, (c & 1u) == 1u, interleaved);
    let distance = select(pairs, 1u, interleaved);
    let own = channel(is_query, start, c);
    let other = channel(is_query, start, select(c + distance, c - distance, second));
    let pair = select(select(c, c - pairs, second), c / 2u, interleaved);
    let turn = angle_at(params.first_angle + row * pairs + pair);
    return own * turn.x + select(-other, other, second) * turn.y;
}
