-- Shared by every script; KEYS[1] is the name space. See index.py for the layout of the keys.
-- Times are integer microseconds. The score of a claim is its last use minus its depth in blocks, so that of everything
-- one use touched the deepest extent is always the oldest.
-- A command costs more than the work it does: blocks go in batches, and counters are summed up and written once (`flush`).
local P = KEYS[1]
local BLOCK = P .. ':b:'
local RECORD = P .. ':x:'
local HISTOGRAM_SECONDS = 16 * 86400
local BATCH = 1000

local function int(x) return string.format('%.0f', x) end

local function name_at(names, i) return string.sub(names, i * 16 + 1, i * 16 + 16) end

local function block_get(name)
  local v = redis.call('GET', BLOCK .. name)
  if not v then return nil end
  return string.sub(v, 1, 16), struct.unpack('<I2', v, 17)
end

local function claim_key(claim) return P .. ':u:' .. claim end

-- Blocks that an extent's names (from block `off`) and the chain (from block `i`) have in common.
local function overlap(names, off, chain, i)
  local blocks = math.min(#names / 16 - off, #chain / 16 - i)
  local function same(count)
    return string.sub(names, off * 16 + 1, (off + count) * 16) == string.sub(chain, i * 16 + 1, (i + count) * 16)
  end
  if blocks <= 0 or same(blocks) then return math.max(blocks, 0) end
  local low, high = 0, blocks
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if same(middle) then low = middle else high = middle end
  end
  return low
end

-- Visit the extents that hold the chain from its first block on, with `fields` of their records (the first is `h`, the
-- names); returns the number of blocks found.
local function walk(chain, fields, visit)
  local blocks, i = #chain / 16, 0
  while i < blocks do
    local id, off = block_get(name_at(chain, i))
    if not id then break end
    local record = redis.call('HMGET', RECORD .. id, unpack(fields))
    if not record[1] then break end
    local count = overlap(record[1], off, chain, i)
    if count == 0 then break end
    visit(id, off, count, i, record)
    i = i + count
  end
  return i
end

local function record_get(id)
  local flat = redis.call('HGETALL', RECORD .. id)
  if #flat == 0 then return nil end
  local record = {}
  for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
  record.b, record.n, record.d = tonumber(record.b), tonumber(record.n), tonumber(record.d)
  return record
end

local function claimed(record)
  for field in pairs(record) do
    if string.sub(field, 1, 2) == 'c:' then return string.sub(field, 3) end
  end
  return nil
end

-- Counters by key and field, and how long the key lives; 0 fields of sizes disappear.
local counted = {}
local function count(key, field, amount)
  counted[key] = counted[key] or {}
  counted[key][field] = (counted[key][field] or 0) + amount
end
local function flush()
  for key, fields in pairs(counted) do
    local size = string.sub(key, #P + 1, #P + 6) == ':size:'
    for field, amount in pairs(fields) do
      local left = amount ~= 0 and redis.call('HINCRBY', key, field, int(amount))
      if size and left == 0 then redis.call('HDEL', key, field) end
    end
    if not size then redis.call('EXPIRE', key, HISTOGRAM_SECONDS) end
  end
  counted = {}
end

-- Quarter octaves of seconds; everything below one second is 0.
local function interval_bucket(micros)
  local seconds = micros / 1e6
  if seconds <= 1 then return '0' end
  return int(math.floor(4 * math.log(seconds) / math.log(2)))
end

local function count_in_histogram(kind, claim, day, bucket, blocks)
  count(P .. ':h:' .. kind .. ':' .. claim .. ':' .. day, bucket, blocks)
end

local function account(record, sign)
  for _, owner in ipairs({ 'total', 't:' .. record.t, 'm:' .. record.f, 'k:' .. record.k }) do
    count(P .. ':size:bytes', owner, sign * record.b)
    count(P .. ':size:blocks', owner, sign * record.n)
    count(P .. ':size:extents', owner, sign)
  end
end

local function claim_set(id, claim, score, old, bytes)
  redis.call('ZADD', claim_key(claim), int(score), id)
  redis.call('HSET', RECORD .. id, 'c:' .. claim, int(score))
  if not old then
    count(P .. ':size:claims', claim, bytes)
    redis.call('SADD', P .. ':classes', claim)
  end
end

local function claim_drop(id, claim, record)
  redis.call('ZREM', claim_key(claim), id)
  redis.call('HDEL', RECORD .. id, 'c:' .. claim)
  record['c:' .. claim] = nil
  count(P .. ':size:claims', claim, -record.b)
end

-- Remember what went and when it was last used, so that a preview can tell what a longer life would have hit.
local function ghost_add(record, claim, last, ghosts)
  if ghosts <= 0 or record.k ~= 'paged' then return end
  local order, held = P .. ':gz:' .. claim, P .. ':gn:' .. claim
  local name = name_at(record.h, 0)
  redis.call('ZADD', order, int(last), name)
  redis.call('HSET', held, name, int(record.n) .. ' ' .. int(last))
  local excess = redis.call('ZCARD', order) - ghosts
  if excess > 0 then
    local old = redis.call('ZRANGE', order, 0, math.min(excess, BATCH) - 1)
    redis.call('ZREM', order, unpack(old))
    redis.call('HDEL', held, unpack(old))
  end
end

local function destroy(id, record, reason, claim, now, day)
  for first = 0, record.n - 1, BATCH do
    local keys = {}
    for i = first, math.min(first + BATCH, record.n) - 1 do keys[#keys + 1] = BLOCK .. name_at(record.h, i) end
    local mine = {}
    for i, v in ipairs(redis.call('MGET', unpack(keys))) do
      if v and string.sub(v, 1, 16) == id then mine[#mine + 1] = keys[i] end
    end
    if #mine > 0 then redis.call('DEL', unpack(mine)) end
  end
  redis.call('DEL', RECORD .. id)
  redis.call('ZREM', P .. ':all', id)
  redis.call('ZADD', P .. ':trash', now, id)
  account(record, -1)
  local gone = P .. ':gone:' .. day
  count(gone, reason .. '|' .. claim .. '|extents', 1)
  count(gone, reason .. '|' .. claim .. '|blocks', record.n)
  count(gone, reason .. '|' .. claim .. '|bytes', record.b)
end
