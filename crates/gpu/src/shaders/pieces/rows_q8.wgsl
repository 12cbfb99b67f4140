// Rows of a cache of codes: four of them are a word, and behind them a half is the scale of 32. A "word" of values is two, half of one.
const WORD_VALUES: u32 = 2u;

// Words of codes in a row of `words` words: one scale for every eight of them, in fours.
fn code_words(words: u32) -> u32 {
    return words - (words + 67u) / 68u * 4u;
}

fn scale_in(word: u32, group: u32) -> f32 {
    return unpack2x16float(word)[group % 2u];
}

// Four channels of the key of a row, which is a head of a slot.
fn key_quad(row: u32, quad: u32) -> vec4<f32> {
    let at = row * params.key_words;
    let group = quad / 8u;
    return scale_in(keys[at + code_words(params.key_words) + group / 2u], group) * codes_of(keys[at + quad]);
}

// The channels of half a word of its value.
fn value_pair(row: u32, word: u32) -> vec2<f32> {
    let at = row * params.value_stride;
    let group = word / 16u;
    let four = codes_of(values[at + word / 2u]);
    let scale = scale_in(values[at + code_words(params.value_stride) + group / 2u], group);
    return scale * select(four.xy, four.zw, word % 2u == 1u);
}
