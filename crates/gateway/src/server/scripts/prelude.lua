-- What a script finds: Lua 5.1 without what reaches beyond it, as Redis has it. Each
-- script has a state of its own, so whatever it changes here is gone with it.
local call, is_over, sha1hex, KEYS_, ARGV_ = ...
local raw_pcall, raw_xpcall, raw_error = pcall, xpcall, error
local gsub, type, tostring, rawget = string.gsub, type, tostring, rawget
local setmetatable = setmetatable

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
  if is_over() then raw_error("the script ran for too long", 0) end
  if not is_done and type(answer) == "table" and type(rawget(answer, "err")) == "string" then
    return false, answer.err
  end
  return is_done, answer, ...
end
pcall = function(...) return after(raw_pcall(...)) end
xpcall = function(...) return after(raw_xpcall(...)) end

-- Patterns are matched without looking at the time, and some take longer than any
-- machine has: with each repetition by the length of the string once more.
local WORK_MAX, PATTERN_LEN_MAX = 1e7, 256
local function check(subject, pattern)
  subject, pattern = tostring(subject), tostring(pattern)
  if #pattern > PATTERN_LEN_MAX then raw_error("the pattern is too long", 3) end
  local plain = gsub(gsub(pattern, "%%.", "a"), "%[.-%]", "a")
  local _, repetitions = gsub(plain, "[%*%+%-%?]", "")
  local _, balanced = gsub(pattern, "%%b", "")
  if (#subject + 1) ^ (repetitions + balanced + 1) > WORK_MAX and repetitions + balanced > 0 then
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
local raw_find = string.find
string.find = function(subject, pattern, init, plain)
  if not plain then check(subject, pattern) end
  return raw_find(subject, pattern, init, plain)
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
KEYS, ARGV = KEYS_, ARGV_

setmetatable(_G, {
  __index = function(_, name)
    raw_error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function()
    raw_error("Attempt to modify a readonly table", 2)
  end,
  __metatable = false,
})

return function(chunk)
  local is_done, answer = raw_pcall(chunk)
  if is_over() then return false, "the script ran for too long" end
  return is_done, answer
end
