//! Scripts and transactions that nobody would write, the same ones each time: whatever
//! they are, nobody waits for them, and everybody is answered.

use super::cases::Round;
use super::wire::command;

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// Mostly a small number, sometimes a large one.
    fn number(&mut self) -> usize {
        let digits = self.below(7);
        self.below(10_usize.pow(digits as u32))
    }

    fn key(&mut self) -> String {
        format!("random:{}", self.below(4))
    }
}

/// Statements, `N` being a number: what fills memory or takes time, what is refused, what
/// changes the key.
const STATEMENTS: &[&str] = &[
    "for i = 1, N do t[i] = i * 7 % 13 end",
    "table.sort(t)",
    "table.insert(t, 1, N)",
    "table.concat(t, 'x')",
    "s = string.rep('ab', N)",
    "s = s .. s",
    "for i = 1, N do s = s .. i end",
    "string.find(s, string.rep('a*', 8) .. 'c')",
    "string.gsub(s, 'a', 'bb')",
    "t = cjson.decode('[' .. string.rep('[', N % 200) .. ']')",
    "cjson.encode(t)",
    "redis.call('SET', KEYS[1], N)",
    "redis.call('SET', KEYS[1], s)",
    "redis.call('APPEND', KEYS[1], s)",
    "redis.call('SETRANGE', KEYS[1], N, 'x')",
    "redis.pcall('INCRBY', KEYS[1], N)",
    "for i = 1, N do redis.call('GET', KEYS[1]) end",
    "redis.call('PEXPIRE', KEYS[1], N)",
    "redis.call('DEL', KEYS[1])",
    "redis.call('LPUSH', KEYS[1], 'x')",
    "redis.call('GET', 'another')",
    "local f f = function(n) return 1 + f(n + 1) end f(1)",
    "setmetatable(t, {__index = function(_, k) return t[k + 1] end}) s = t[-1]",
    "error(s)",
    "return t",
    "while true do end",
];

fn script(random: &mut Random) -> String {
    let mut text = "local t, s = {}, 'a'\n".to_owned();
    for _ in 0..1 + random.below(8) {
        let number = random.number().to_string();
        let statement = random.pick(STATEMENTS).replace('N', &number);
        // One that ends a block may stand in the middle like this.
        text += &match random.below(3) {
            0 => format!("pcall(function() {statement} end)\n"),
            _ => format!("do {statement} end\n"),
        };
    }
    text
}

fn put(words: &[&str], out: &mut Vec<u8>) {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    command(&words, out);
}

/// Scripts, one after the other.
pub(super) fn scripts() -> Round {
    let mut random = Random(0x5eed);
    Box::new(move |wire| {
        let mut request = Vec::new();
        let (text, key) = (script(&mut random), random.key());
        put(&["EVAL", &text, "1", &key], &mut request);
        wire.ask(&request)
    })
}

/// One command on a key, whatever its value is.
fn any(random: &mut Random, out: &mut Vec<u8>) {
    let (key, number) = (random.key(), random.number().to_string());
    let value = "v".repeat(random.number() % 200_000);
    match random.below(14) {
        0 | 1 => put(&["GET", &key], out),
        2 => put(&["SET", &key, &value], out),
        3 => put(&["SET", &key, "1"], out),
        4 => put(&["APPEND", &key, &value], out),
        5 => put(&["INCRBY", &key, &number], out),
        6 => put(&["GETRANGE", &key, "0", &number], out),
        7 => put(&["SETRANGE", &key, &number, "x"], out),
        8 => put(&["EXPIRE", &key, &number], out),
        9 => put(&["DEL", &key, &random.key()], out),
        10 => put(&["MGET", &key, &random.key(), &random.key()], out),
        11 => put(&["EVAL", &script(random), "1", &key], out),
        12 => put(&["SCAN", "0", "COUNT", &number], out),
        _ => put(&["HSET", &key, "f", "v"], out),
    }
}

/// Transactions, one after the other, some of them under WATCH.
pub(super) fn transactions() -> Round {
    let mut random = Random(0x0dd5);
    Box::new(move |wire| {
        let mut requests = Vec::new();
        let mut answers = 2;
        if random.below(3) == 0 {
            put(&["WATCH", &random.key()], &mut requests);
            answers += 1;
        }
        put(&["MULTI"], &mut requests);
        let count = random.below(60);
        for _ in 0..count {
            any(&mut random, &mut requests);
        }
        put(&[random.pick(&["EXEC", "EXEC", "DISCARD"])], &mut requests);
        wire.ask_many(&requests, answers + count)
    })
}
