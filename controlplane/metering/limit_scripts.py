"""Limits in Valkey: the keys, and the scripts that make each change of them one step, whichever gateway asks.

A subject (`t:<tenant>`, `k:<root key>`) has three keys:

- `bucket`: two token buckets that refill continuously, one of requests and one of tokens. Fields `r`, `t` are levels,
  `rt`, `tt` the instants (milliseconds) they are of.
- `active`: sorted set of request ids by the instant their reservation expires. Its size is the concurrency.
- `money:<month>`: nano-dollars. `spent` is what the ledger has, `r:<request id>` what a request that is not in the
  ledger yet has reserved or used, `pending` the sum of those. Absent `spent`: nobody knows, so nobody spends.

`gateway:<journal>` names the reservations of one gateway and what it takes to undo them: those of a gateway that died
before it could write them down are found there.

Everything but `spent` is kept by request id, so each script may run twice for one request without harm. The instant is
the server's: gateways' clocks do not matter. Amounts stay below 2^53 nano-dollars (9 million dollars a month), where
Lua's numbers are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

PREFIX: Final = "galley:limits"
PICO_PER_NANO: Final = 1000
MONEY_TTL_S: Final = 40 * 86_400

OK: Final = 0
REQUESTS: Final = 1
TOKENS: Final = 2
CONCURRENCY: Final = 3
BUDGET: Final = 4
BUDGET_UNKNOWN: Final = 5


def month_of(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y%m")


def money_key(subject: str, month: str) -> str:
    return f"{PREFIX}:{subject}:money:{month}"


def subject_keys(subjects: Sequence[str], month: str) -> list[str]:
    """Three keys for each subject, in the scripts' order."""
    return [
        key
        for name in subjects
        for key in (f"{PREFIX}:{name}:bucket", f"{PREFIX}:{name}:active", money_key(name, month))
    ]


def gateway_key(journal: str) -> str:
    return f"{PREFIX}:gateway:{journal}"


def nano_of_pico(pico: int) -> int:
    """Rounded up."""
    return -(-pico // PICO_PER_NANO)


_COMMON = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function level(bucket, field, cap)
  local found = redis.call('HMGET', bucket, field, field .. 't')
  if not found[1] then return cap end
  local refilled = tonumber(found[1]) + math.max(now - tonumber(found[2]), 0) * cap / 60000
  return math.min(refilled, cap)
end

local function keep(bucket, field, value)
  redis.call('HSET', bucket, field, string.format('%.3f', value), field .. 't', string.format('%.0f', now))
  redis.call('PEXPIRE', bucket, 180000)
end

local function drop(money, id)
  local held = redis.call('HGET', money, 'r:' .. id)
  if held then
    if held ~= '0' then redis.call('HINCRBY', money, 'pending', '-' .. held) end
    redis.call('HDEL', money, 'r:' .. id)
  end
end
"""

RESERVE: Final = (
    _COMMON
    + """
-- KEYS: three per subject, the gateway's reservations
-- ARGV: id, milliseconds to live, tokens, nano-dollars, what a refund has to know;
--   per subject: requests, tokens, concurrency, budget (-1: none)
-- -> {code, subject (from 1), wait ms, then per subject requests left, tokens left (-1: no such limit)}
local id, ttl = ARGV[1], tonumber(ARGV[2])
local tokens, cost = tonumber(ARGV[3]), ARGV[4]
local count = (#KEYS - 1) / 3
local code, at, wait = 0, 0, 0
local requests, wanted, lefts = {}, {}, {}

-- Sent twice, as clients do that heard no answer: it is reserved, once.
local held = redis.call('ZSCORE', KEYS[2], id)
local again = held and tonumber(held) > now

local function refuse(why, subject, ms)
  if code == 0 and not again then code, at, wait = why, subject, math.ceil(ms) end
end

for i = 1, count do
  local bucket, active, money = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local rpm, tpm = tonumber(ARGV[4 * i + 2]), tonumber(ARGV[4 * i + 3])
  local most, budget = tonumber(ARGV[4 * i + 4]), tonumber(ARGV[4 * i + 5])
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', active, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', active, gone)
    drop(money, gone)
  end
  if rpm >= 0 then
    requests[i] = level(bucket, 'r', rpm)
    if requests[i] < 1 then refuse(1, i, (1 - requests[i]) * 60000 / rpm) end
  end
  if tpm >= 0 then
    lefts[i] = level(bucket, 't', tpm)
    wanted[i] = math.min(tokens, tpm)  -- more than the whole bucket waits for a full one
    if lefts[i] < wanted[i] then refuse(2, i, (wanted[i] - lefts[i]) * 60000 / tpm) end
  end
  if most >= 0 and redis.call('ZCARD', active) >= most then refuse(3, i, 1000) end
  if budget >= 0 then
    local found = redis.call('HMGET', money, 'spent', 'pending')
    if not found[1] then
      refuse(5, i, 2000)
    elseif tonumber(found[1]) + tonumber(found[2] or '0') + tonumber(cost) > budget then
      refuse(4, i, 0)
    end
  end
end

local reply = {code, at, wait}
for i = 1, count do
  local bucket, active, money = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  if code == 0 and not again then
    if requests[i] then
      requests[i] = requests[i] - 1
      keep(bucket, 'r', requests[i])
    end
    if lefts[i] then
      lefts[i] = lefts[i] - wanted[i]
      keep(bucket, 't', lefts[i])
    end
    redis.call('ZADD', active, string.format('%.0f', now + ttl), id)
    redis.call('PEXPIRE', active, ttl + 3600000)
    if tonumber(ARGV[4 * i + 5]) >= 0 then
      drop(money, id)
      redis.call('HSET', money, 'r:' .. id, cost)
      redis.call('HINCRBY', money, 'pending', cost)
    end
  end
  reply[#reply + 1] = requests[i] and math.max(math.floor(requests[i]), 0) or -1
  reply[#reply + 1] = lefts[i] and math.max(math.floor(lefts[i]), 0) or -1
end
if code == 0 and not again then
  redis.call('HSET', KEYS[#KEYS], id, ARGV[5])
  redis.call('EXPIRE', KEYS[#KEYS], 86400)
end
return reply
"""
)

SETTLE: Final = (
    _COMMON
    + """
-- KEYS: the stream, three per subject, the gateway's reservations
-- ARGV: id, event ('': none), stream bound, reserved tokens, used tokens, nano-dollars, admitted locally (0 or 1);
--   per subject: requests, tokens (-1: none), budgeted (0 or 1)
-- -> id of the stream entry, or ''
local id, event = ARGV[1], ARGV[2]
local reserved, used, cost, locally = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1'
local count = (#KEYS - 2) / 3
redis.call('HDEL', KEYS[#KEYS], id)
for i = 1, count do
  local bucket, active, money = KEYS[3 * i - 1], KEYS[3 * i], KEYS[3 * i + 1]
  local rpm, tpm = tonumber(ARGV[3 * i + 5]), tonumber(ARGV[3 * i + 6])
  local first = redis.call('ZREM', active, id) == 1
  if tpm >= 0 and (first or locally) then
    local given = locally and 0 or math.min(reserved, tpm)
    local left = math.min(level(bucket, 't', tpm) + given - used, tpm)
    keep(bucket, 't', math.max(left, -tpm))
  end
  if rpm >= 0 and locally then
    keep(bucket, 'r', math.max(level(bucket, 'r', rpm) - 1, -rpm))
  end
  if ARGV[3 * i + 7] == '1' then
    drop(money, id)
    redis.call('HSET', money, 'r:' .. id, cost)
    redis.call('HINCRBY', money, 'pending', cost)
  end
end
if event == '' then return '' end
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*', 'e', event)
"""
)

REFUND: Final = (
    _COMMON
    + """
-- A reservation that nothing came of: as if it had never been. KEYS: three per subject, the gateway's reservations
-- ARGV: id, tokens; per subject: requests, tokens (-1: none)
local id, reserved = ARGV[1], tonumber(ARGV[2])
redis.call('HDEL', KEYS[#KEYS], id)
for i = 1, (#KEYS - 1) / 3 do
  local bucket, active, money = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local rpm, tpm = tonumber(ARGV[2 * i + 1]), tonumber(ARGV[2 * i + 2])
  if redis.call('ZREM', active, id) == 1 then
    if rpm >= 0 then keep(bucket, 'r', math.min(level(bucket, 'r', rpm) + 1, rpm)) end
    if tpm >= 0 then keep(bucket, 't', math.min(level(bucket, 't', tpm) + math.min(reserved, tpm), tpm)) end
  end
  drop(money, id)
end
return 1
"""
)

LEDGERED: Final = (
    _COMMON
    + """
-- The ledger has these requests. KEYS: money; ARGV: nano-dollars that the ledger has for the month, months' TTL, ids
local known = redis.call('HGET', KEYS[1], 'spent')
if not known or tonumber(known) < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'spent', ARGV[1]) end
for i = 3, #ARGV do drop(KEYS[1], ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""
)
