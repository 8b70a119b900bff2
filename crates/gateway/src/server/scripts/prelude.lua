-- What a script finds: Lua 5.1 without what reaches beyond it, as Redis has it. Each
-- script has a state of its own, so whatever it changes here is gone with it.
local raw_call, reserve, over, look, MEMORY_MAX, sha1hex, KEYS_, ARGV_, json, bits,
  raw_register = ...
local raw_pcall, raw_xpcall, raw_error = pcall, xpcall, error
local gsub, type, tostring, rawget = string.gsub, type, tostring, rawget
local setmetatable, floor = setmetatable, math.floor

local ABSENT = {
  "dofile", "loadfile", "load", "loadstring", "collectgarbage", "gcinfo", "getfenv",
  "setfenv", "module", "require", "newproxy", "print", "coroutine", "package", "io", "os",
  "debug",
}
for _, name in ipairs(ABSENT) do _G[name] = nil end
string.dump = nil

-- A script that has had its time cannot go on behind a protected call. Errors of
-- commands are strings there, as they have always been.
local function after(is_done, answer, ...)
  local why = over()
  if why then raw_error(why, 0) end
  if not is_done and type(answer) == "table" and type(rawget(answer, "err")) == "string" then
    return false, answer.err
  end
  return is_done, answer, ...
end
pcall = function(...) return after(raw_pcall(...)) end
xpcall = function(...) return after(raw_xpcall(...)) end

-- What C does in one go looks at the time before it, if it is about much. How much that
-- may be is bounded: by the memory that a script has, and by the length of its tables.
local tonumber, select = tonumber, select
local MUCH, TABLE_LEN_MAX, POSITION_MAX = 4096, 2 ^ 21, 2 ^ 31 - 1
local function look_if(len)
  if len > MUCH then look() end
end

-- What is no table is for the function itself to refuse.
local function look_at(list, level)
  if type(list) ~= "table" then return end
  local len = #list
  -- A few values far apart pass for a long table.
  if len > TABLE_LEN_MAX then raw_error("the table is too long", level + 1) end
  look_if(len)
end

local function position(name, at, level)
  local number = tonumber(at)
  if number and not (number >= 1 and number <= POSITION_MAX) then
    raw_error("bad argument #2 to '" .. name .. "' (position out of bounds)", level + 1)
  end
end

local raw_insert, raw_remove, raw_concat, raw_sort =
  table.insert, table.remove, table.concat, table.sort
table.insert = function(...)
  local list, at = ...
  if select("#", ...) > 2 and type(list) == "table" then
    position("insert", at, 2)
    look_at(list, 2)
  end
  return raw_insert(...)
end
table.remove = function(...)
  local list, at = ...
  -- What is not there is not removed.
  if at ~= nil then look_at(list, 2) end
  return raw_remove(...)
end
table.concat = function(list, ...)
  look_at(list, 2)
  look()
  return raw_concat(list, ...)
end
-- By a function of Lua's in any case: it is that which ends a sort that takes too long.
table.sort = function(list, less, ...)
  look_at(list, 2)
  look()
  local function compare(a, b) return a < b end
  if type(less) == "function" then
    compare = function(a, b) return (less(a, b)) end
  elseif less ~= nil then
    compare = less
  end
  local is_done, words = raw_pcall(raw_sort, list, compare, ...)
  if is_done then return end
  if type(words) == "string" then words = gsub(words, "^prelude:%d+: ", "") end
  raw_error(words, 0)
end
for _, name in ipairs({ "upper", "lower", "reverse" }) do
  local raw = string[name]
  string[name] = function(text, ...)
    if type(text) == "string" then look_if(#text) end
    return raw(text, ...)
  end
end

-- Patterns are matched without looking at the time, and some take longer than any
-- machine has: with each repetition by the length of the string once more.
local WORK_MAX, PATTERN_LEN_MAX = 1e7, 256
local function check(subject, pattern)
  subject, pattern = tostring(subject), tostring(pattern)
  look_if(#subject)
  if #pattern > PATTERN_LEN_MAX then raw_error("the pattern is too long", 3) end
  -- Those in sets and behind escapes, too: what is a set is for the matcher to say.
  local _, repetitions = gsub(pattern, "[%*%+%-%?]", "")
  local _, balanced = gsub(pattern, "%%b", "")
  local work = (#subject + 1) ^ (repetitions + balanced + 1) * (1 + floor(#pattern / 16))
  if work > WORK_MAX then
    raw_error("the pattern has too many repetitions for a string so long", 3)
  end
end
for _, name in ipairs({ "match", "gmatch", "gsub" }) do
  local raw = string[name]
  string[name] = function(subject, pattern, ...)
    check(subject, pattern)
    return raw(subject, pattern, ...)
  end
end
string.gfind = nil
local raw_rep = string.rep
string.rep = function(text, count, ...)
  -- It takes its time over nothing, too.
  if text == "" then return "" end
  local times = tonumber(count)
  if times and (type(text) == "string" or type(text) == "number") then
    local len = #tostring(text) * times
    if len > MEMORY_MAX then raw_error("not enough memory", 0) end
    look_if(len)
  end
  return raw_rep(text, count, ...)
end
local raw_find = string.find
string.find = function(subject, pattern, init, plain)
  look_if(#tostring(subject))
  if not plain then
    check(subject, pattern)
  elseif #tostring(subject) * (1 + floor(#tostring(pattern) / 16)) > WORK_MAX then
    raw_error("the string that is looked for is too long for a string so long", 2)
  end
  return raw_find(subject, pattern, init, plain)
end

-- The words of a command are held outside of Lua while it is executed.
local WORDS_MAX, reserved = 7000, 500
-- A library registers its functions before one of them is called.
local is_registering = raw_register ~= nil
local function call(...)
  if is_registering then
    raw_error("commands can only be called in a function, not while a library is loaded", 3)
  end
  local count = select("#", ...)
  if count > reserved then
    if count > WORDS_MAX then
      return { err = "ERR too many words in a command of a script: at most " .. WORDS_MAX }
    end
    reserve(count)
    reserved = count
  end
  return raw_call(...)
end

redis = {
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REPL_NONE = 0, REPL_SLAVE = 1, REPL_REPLICA = 1, REPL_AOF = 2, REPL_ALL = 3,
  pcall = call,
  sha1hex = sha1hex,
  call = function(...)
    local answer = call(...)
    if type(answer) == "table" and answer.err then raw_error(answer, 0) end
    return answer
  end,
  error_reply = function(words) return { err = words } end,
  status_reply = function(words) return { ok = words } end,
  log = function() end,
  replicate_commands = function() return true end,
  set_repl = function() end,
  breakpoint = function() return false end,
}
-- Functions get theirs as arguments.
if not raw_register then KEYS, ARGV = KEYS_, ARGV_ end

-- What a function may be registered with by name: of which type, and Redis's words where it
-- is not.
local NAMED = {
  function_name = { "string",
    "function_name argument given to redis.register_function must be a string" },
  description = { "string",
    "description argument given to redis.register_function must be a string" },
  callback = { "function",
    "callback argument given to redis.register_function must be a function" },
  flags = { "table",
    "flags argument to redis.register_function must be a table representing function flags" },
}
local functions = {}
local function given(is_right, words)
  if not is_right then raw_error({ err = "ERR " .. words }, 0) end
end
-- By words and their order, or by names in one table.
local function register(...)
  given(is_registering,
    "redis.register_function can only be called on FUNCTION LOAD command")
  local count = select("#", ...)
  given(count == 1 or count == 2, "wrong number of arguments to redis.register_function")
  local name, callback = ...
  local description, flags
  if count == 1 then
    given(type(name) == "table", "calling redis.register_function with a single argument " ..
      "is only applicable to Lua table (representing named arguments).")
    local named, taken = name, {}
    for word, value in next, named do
      -- Numbers pass for strings, as they do everywhere.
      if type(value) == "number" then value = tostring(value) end
      local known = type(word) == "string" and rawget(NAMED, word)
      given(known, "unknown argument given to redis.register_function")
      given(type(value) == known[1], known[2])
      taken[word] = value
    end
    name, callback = taken.function_name, taken.callback
    description, flags = taken.description, taken.flags
    given(name, "redis.register_function must get a function name argument")
    given(callback, "redis.register_function must get a callback argument")
  else
    given(type(callback) == "function",
      "second argument to redis.register_function must be a function")
    given(type(name) == "string" or type(name) == "number",
      "first argument to redis.register_function must be a string")
    name = tostring(name)
  end
  local words = raw_register(name, description, flags or {})
  given(not words, words)
  functions[name] = callback
end
if raw_register then redis.register_function = register end

-- Errors are strings with a position, as those of C's functions are.
local function one(name, function_)
  return function(...)
    if select("#", ...) ~= 1 then
      raw_error("bad argument #1 to '" .. name .. "' (expected 1 argument)", 2)
    end
    local answer, words = function_(...)
    if words then raw_error(words, 2) end
    return answer
  end
end
local raw_decode = json.decode
local function decode(text)
  if type(text) == "number" then text = tostring(text) end
  if type(text) ~= "string" then
    return nil, "bad argument #1 to 'decode' (string expected, got " .. type(text) .. ")"
  end
  return raw_decode(text)
end
cjson = {
  null = json.null,
  encode = one("encode", json.encode),
  decode = one("decode", decode),
  _NAME = "cjson", _VERSION = "2.1.0",
}

local function number(name, at, value)
  local is_one = type(value) == "number" or type(value) == "string"
  local answer = is_one and tonumber(value)
  if not answer then
    local got = value == nil and "no value" or type(value)
    raw_error("bad argument #" .. at .. " to '" .. name .. "' (number expected, got " .. got .. ")", 3)
  end
  return answer
end
bit = {}
for _, name in ipairs({ "tobit", "bnot", "bswap" }) do
  local raw = bits[name]
  bit[name] = function(x) return raw(number(name, 1, x), 0) end
end
for _, name in ipairs({ "lshift", "rshift", "arshift", "rol", "ror" }) do
  local raw = bits[name]
  bit[name] = function(x, n) return raw(number(name, 1, x), number(name, 2, n)) end
end
for _, name in ipairs({ "band", "bor", "bxor" }) do
  local raw, whole = bits[name], bits.tobit
  bit[name] = function(x, ...)
    local answer = whole(number(name, 1, x), 0)
    for at = 1, select("#", ...) do
      answer = raw(answer, number(name, at + 1, (select(at, ...))))
    end
    return answer
  end
end
bit.tohex = function(x, n)
  return bits.tohex(number("tohex", 1, x), n == nil and 8 or number("tohex", 2, n))
end

setmetatable(_G, {
  __index = function(_, name)
    raw_error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function()
    raw_error("Attempt to modify a readonly table", 2)
  end,
  __metatable = false,
})

return function(chunk, name)
  local is_done, answer = raw_pcall(chunk)
  is_registering = false
  if is_done and name then
    local callback = functions[name]
    if callback then
      is_done, answer = raw_pcall(callback, KEYS_, ARGV_)
    else
      is_done, answer = false, "ERR the library has not registered this function this time"
    end
  end
  local why = over()
  if why then return false, why end
  return is_done, answer
end
