// The key and the value that come in with a token: packed as they come, two values at a time.
const TOGETHER: bool = false;

var<workgroup> new_key: array<vec4<u32>, WIDEST / FOUR>;
var<workgroup> new_value: array<vec4<u32>, WIDEST / FOUR>;

// Channels `c` and the next.
fn keep_two(is_value: bool, c: u32, two: vec2<f32>) {
    // One word is two values, or each is one.
    let word = c / WORD_VALUES;
    if is_value {
        new_value[word / 4u][word % 4u] = packed(two);
    } else {
        new_key[word / 4u][word % 4u] = packed(two);
    }
    if WORD_VALUES == 1u {
        if is_value {
            new_value[word / 4u][word % 4u + 1u] = packed(two.yx);
        } else {
            new_key[word / 4u][word % 4u + 1u] = packed(two.yx);
        }
    }
}

fn keep_rows(place: Place) {}

// What a row with `n` fours takes in the cache.
fn row_fours(n: u32) -> u32 {
    return n;
}

fn kept_key(i: u32, n: u32) -> Four {
    return new_key[i];
}

fn kept_value(i: u32, n: u32) -> Four {
    return new_value[i];
}
