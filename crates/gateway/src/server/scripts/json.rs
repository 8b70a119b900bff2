//! `cjson` for scripts: tables as JSON and back, as Redis's library has it.
//!
//! Errors are words, which the prelude throws: what Rust throws is no string in Lua.
//! A table without anything is an object. Values within values go as deep as
//! [`DEPTH_MAX`], far less than in Redis: the stack of a thread holds them.

use super::engine::Clock;
use mlua::{Function, Lua, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;

/// Values within values; `serde_json` has this bound, too.
const DEPTH_MAX: usize = 127;
/// Values between two looks at the script's time.
const VALUES_BETWEEN: usize = 256;
/// An array with more places than that has to have a value in half of them.
const PLACES_MAX: f64 = 10.0;

/// What both directions look at.
pub(super) struct Json<'l> {
    lua: &'l Lua,
    clock: &'l Clock,
    values: Cell<usize>,
}

impl<'l> Json<'l> {
    pub(super) fn new(lua: &'l Lua, clock: &'l Clock) -> Self {
        let values = Cell::new(0);
        Json { lua, clock, values }
    }

    fn look(&self) -> mlua::Result<()> {
        self.values.set(self.values.get() + 1);
        match self.values.get().is_multiple_of(VALUES_BETWEEN) {
            true => self.clock.look(),
            false => Ok(()),
        }
    }

    /// The value that a text stands for. A null is Lua's null pointer.
    pub(super) fn decode(&self, text: &[u8]) -> Result<Value, String> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let value = Decoded { json: self }.deserialize(&mut reader);
        let value = value.and_then(|value| reader.end().map(|()| value));
        value.map_err(|error| format!("Cannot decode JSON: {error}"))
    }

    /// The text that stands for a value, of `len_max` bytes at most. `number` writes
    /// numbers as C does.
    pub(super) fn encode(
        &self,
        value: &Value,
        number: &Function,
        len_max: usize,
    ) -> Result<Vec<u8>, String> {
        let mut writer = Writer {
            json: self,
            number,
            out: Vec::new(),
            len_max,
        };
        writer.value(value, 0)?;
        Ok(writer.out)
    }
}

/// Makes the next value of a text, as a value of Lua's.
#[derive(Clone, Copy)]
struct Decoded<'j, 'l> {
    json: &'j Json<'l>,
}

impl<'de> DeserializeSeed<'de> for Decoded<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.json.look().map_err(D::Error::custom)?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Decoded<'_, '_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        let text = self.json.lua.create_string(value).map_err(E::custom)?;
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let table = self.json.lua.create_table().map_err(A::Error::custom)?;
        let mut index = 1;
        while let Some(value) = values.next_element_seed(self)? {
            table.raw_set(index, value).map_err(A::Error::custom)?;
            index += 1;
        }
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let table = self.json.lua.create_table().map_err(A::Error::custom)?;
        while let Some(name) = values.next_key_seed(self)? {
            let value = values.next_value_seed(self)?;
            table.raw_set(name, value).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(table))
    }
}

struct Writer<'j, 'l> {
    json: &'j Json<'l>,
    number: &'j Function,
    out: Vec<u8>,
    len_max: usize,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        let failed = |error: mlua::Error| error.to_string();
        self.json.look().map_err(failed)?;
        self.check_len()?;
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => {
                self.out.extend_from_slice(b"null");
            }
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.string(&text.as_bytes())?,
            Value::Table(_) if depth >= DEPTH_MAX => {
                let depth = depth + 1;
                return Err(format!("Cannot serialise, excessive depth ({depth})"));
            }
            Value::Table(table) => match self.place_count(table)? {
                Some(count) => {
                    self.out.push(b'[');
                    for index in 1..=count {
                        if index > 1 {
                            self.out.push(b',');
                        }
                        let value: Value = table.raw_get(index).map_err(failed)?;
                        self.value(&value, depth + 1)?;
                    }
                    self.out.push(b']');
                }
                None => self.object(table, depth)?,
            },
            other => {
                let name = other.type_name();
                return Err(format!("Cannot serialise {name}: type not supported"));
            }
        }
        Ok(())
    }

    /// The places of an array; `None` if the table is an object.
    fn place_count(&self, table: &Table) -> Result<Option<usize>, String> {
        let (mut last, mut count) = (0f64, 0f64);
        for pair in table.pairs::<Value, Value>() {
            let (name, _) = pair.map_err(|error| error.to_string())?;
            self.json.look().map_err(|error| error.to_string())?;
            let index = match name {
                Value::Integer(index) => index as f64,
                Value::Number(index) => index,
                _ => return Ok(None),
            };
            if index < 1.0 || index.fract() != 0.0 {
                return Ok(None);
            }
            last = last.max(index);
            count += 1.0;
        }
        if last > PLACES_MAX && last > 2.0 * count {
            return Err("Cannot serialise table: excessively sparse array".to_owned());
        }
        Ok((count > 0.0).then_some(last as usize))
    }

    fn object(&mut self, table: &Table, depth: usize) -> Result<(), String> {
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (name, value) = pair.map_err(|error| error.to_string())?;
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            match name {
                Value::String(name) => self.string(&name.as_bytes())?,
                Value::Integer(number) => self.number_as_name(number as f64)?,
                Value::Number(number) => self.number_as_name(number)?,
                other => {
                    let name = other.type_name();
                    return Err(format!(
                        "Cannot serialise {name}: table key must be a number or string"
                    ));
                }
            }
            self.out.push(b':');
            self.value(&value, depth + 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), String> {
        if !number.is_finite() {
            return Err("Cannot serialise number: must not be NaN or Inf".to_owned());
        }
        let text: Result<mlua::String, _> = self.number.call(("%.14g", number));
        let text = text.map_err(|error| error.to_string())?;
        self.out.extend_from_slice(&text.as_bytes());
        Ok(())
    }

    fn number_as_name(&mut self, number: f64) -> Result<(), String> {
        self.out.push(b'"');
        self.number(number)?;
        self.out.push(b'"');
        Ok(())
    }

    fn check_len(&self) -> Result<(), String> {
        match self.out.len() > self.len_max {
            true => Err(format!(
                "Cannot serialise: more than {} bytes",
                self.len_max
            )),
            false => Ok(()),
        }
    }

    /// Bytes that are no text are copied as they are.
    fn string(&mut self, text: &[u8]) -> Result<(), String> {
        self.out.push(b'"');
        for byte in text {
            self.check_len()?;
            let short = match byte {
                b'"' | b'\\' | b'/' => *byte,
                8 => b'b',
                9 => b't',
                10 => b'n',
                12 => b'f',
                13 => b'r',
                0..32 | 127 => {
                    let long = format!("\\u{byte:04x}");
                    self.out.extend_from_slice(long.as_bytes());
                    continue;
                }
                _ => {
                    self.out.push(*byte);
                    continue;
                }
            };
            self.out.extend_from_slice(&[b'\\', short]);
        }
        self.out.push(b'"');
        Ok(())
    }
}
