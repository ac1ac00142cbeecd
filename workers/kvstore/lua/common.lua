-- Shared by every script; KEYS[1] is the name space. See index.py for the layout of the keys.
-- Times are integer microseconds. The score of a claim is its last use minus its depth in blocks, so that of everything
-- one use touched the deepest extent is always the oldest.
local P = KEYS[1]
local RECORD = P .. ':x:'
local HISTOGRAM_SECONDS = 16 * 86400

local function int(x) return string.format('%.0f', x) end

local function block_get(name)
  local v = redis.call('HGET', P .. ':b:' .. string.sub(name, 1, 2), string.sub(name, 3))
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

-- Visit the extents that hold the chain from its first block on; returns the number of blocks found.
local function walk(chain, visit)
  local blocks, i = #chain / 16, 0
  while i < blocks do
    local id, off = block_get(string.sub(chain, i * 16 + 1, i * 16 + 16))
    if not id then break end
    local record = redis.call('HMGET', RECORD .. id, 'h', 'd', 'b', 'm')
    if not record[1] then break end
    local count = overlap(record[1], off, chain, i)
    if count == 0 then break end
    visit(id, off, count, i, record)
    i = i + count
  end
  return i
end

local function claims_of(id, claims)
  local held = {}
  for _, claim in ipairs(claims) do
    local score = redis.call('ZSCORE', claim_key(claim), id)
    if score then
      held[#held + 1] = claim
      held[#held + 1] = int(tonumber(score))
    end
  end
  return held
end

-- Quarter octaves of seconds; everything below one second is 0.
local function interval_bucket(micros)
  local seconds = micros / 1e6
  if seconds <= 1 then return 0 end
  return math.floor(4 * math.log(seconds) / math.log(2))
end

local function count_in_histogram(kind, claim, day, bucket, blocks)
  local key = P .. ':h:' .. kind .. ':' .. claim .. ':' .. day
  redis.call('HINCRBY', key, bucket, blocks)
  redis.call('EXPIRE', key, HISTOGRAM_SECONDS)
end

local function account(record, sign)
  local bytes, blocks = int(sign * record.b), int(sign * record.n)
  for _, owner in ipairs({ 'total', 't:' .. record.t, 'm:' .. record.f, 'k:' .. record.k }) do
    for part, amount in pairs({ bytes = bytes, blocks = blocks, extents = int(sign) }) do
      local left = redis.call('HINCRBY', P .. ':size:' .. part, owner, amount)
      if left == 0 then redis.call('HDEL', P .. ':size:' .. part, owner) end
    end
  end
end

local function record_get(id)
  local flat = redis.call('HGETALL', RECORD .. id)
  if #flat == 0 then return nil end
  local record = {}
  for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
  record.b, record.n, record.d = tonumber(record.b), tonumber(record.n), tonumber(record.d)
  return record
end

local function claim_drop(id, claim, bytes)
  if redis.call('ZREM', claim_key(claim), id) == 0 then return end
  if redis.call('HINCRBY', P .. ':size:claims', claim, int(-bytes)) == 0 then
    redis.call('HDEL', P .. ':size:claims', claim)
  end
end

-- Remember what went and when it was last used, so that a preview can tell what a longer life would have hit.
local function ghost_add(record, claim, last, ghosts)
  if ghosts <= 0 or record.k ~= 'paged' then return end
  local name = string.sub(record.h, 1, 16)
  redis.call('ZADD', P .. ':gz:' .. claim, int(last), name)
  redis.call('HSET', P .. ':gn:' .. claim, name, int(record.n))
  local excess = redis.call('ZCARD', P .. ':gz:' .. claim) - ghosts
  if excess > 0 then
    for _, old in ipairs(redis.call('ZRANGE', P .. ':gz:' .. claim, 0, excess - 1)) do
      redis.call('ZREM', P .. ':gz:' .. claim, old)
      redis.call('HDEL', P .. ':gn:' .. claim, old)
    end
  end
end

local function destroy(id, record, reason, claim, now, day)
  for i = 0, record.n - 1 do
    local name = string.sub(record.h, i * 16 + 1, i * 16 + 16)
    if block_get(name) == id then redis.call('HDEL', P .. ':b:' .. string.sub(name, 1, 2), string.sub(name, 3)) end
  end
  redis.call('DEL', RECORD .. id)
  redis.call('ZREM', P .. ':all', id)
  redis.call('ZADD', P .. ':trash', now, id)
  account(record, -1)
  local gone = P .. ':gone:' .. day
  redis.call('HINCRBY', gone, reason .. '|' .. claim .. '|extents', 1)
  redis.call('HINCRBY', gone, reason .. '|' .. claim .. '|blocks', int(record.n))
  redis.call('HINCRBY', gone, reason .. '|' .. claim .. '|bytes', int(record.b))
  redis.call('EXPIRE', gone, HISTOGRAM_SECONDS)
end
