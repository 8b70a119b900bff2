//! `bit` for scripts: operations on the lower 32 bits of numbers, whose results are
//! signed, as in LuaJIT's library.

use mlua::{Lua, Table};

/// Brings the lower 32 bits of a whole number to the end of its mantissa.
const SHIFT: f64 = 6_755_399_441_055_744.0;

fn bits(number: f64) -> u32 {
    (number + SHIFT).to_bits() as u32
}

fn number(bits: u32) -> f64 {
    f64::from(bits as i32)
}

/// Functions of two numbers, whatever they do with the second one; the prelude makes of
/// them what scripts call.
pub(super) fn functions(lua: &Lua) -> mlua::Result<Table> {
    type Operation = fn(u32, u32) -> u32;
    let operations: [(&str, Operation); 11] = [
        ("tobit", |x, _| x),
        ("bnot", |x, _| !x),
        ("bswap", |x, _| x.swap_bytes()),
        ("band", |x, y| x & y),
        ("bor", |x, y| x | y),
        ("bxor", |x, y| x ^ y),
        ("lshift", |x, n| x << (n & 31)),
        ("rshift", |x, n| x >> (n & 31)),
        ("arshift", |x, n| ((x as i32) >> (n & 31)) as u32),
        ("rol", |x, n| x.rotate_left(n & 31)),
        ("ror", |x, n| x.rotate_right(n & 31)),
    ];
    let table = lua.create_table()?;
    for (name, operation) in operations {
        let function = move |_: &Lua, (x, y): (f64, f64)| Ok(number(operation(bits(x), bits(y))));
        table.raw_set(name, lua.create_function(function)?)?;
    }
    // So many digits, at most eight; large letters if there are fewer than none.
    let tohex = |_: &Lua, (x, n): (f64, f64)| {
        let count = bits(n) as i32;
        let digits = count.unsigned_abs().min(8) as usize;
        let text = match count < 0 {
            true => format!("{:08X}", bits(x)),
            false => format!("{:08x}", bits(x)),
        };
        Ok(text[8 - digits..].to_owned())
    };
    table.raw_set("tohex", lua.create_function(tohex)?)?;
    Ok(table)
}
