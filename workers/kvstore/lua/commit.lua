-- ARGV: id, claim, last use, created, salt id, fingerprint, bytes, depth, parent name, kind, names, new writing ('1') or
-- rebuilding ('0'), store id, file time, day, most blocks. Returns one word; only 'stored' and 'exists' keep the file.
local id, claim, last, created = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local record = { t = ARGV[5], f = ARGV[6], b = tonumber(ARGV[7]), d = tonumber(ARGV[8]), p = ARGV[9], k = ARGV[10], h = ARGV[11] }
record.n = #record.h / 16
if redis.call('HGET', P .. ':meta', 'store') ~= ARGV[13] then return 'lost' end
local scopes = { 't:' .. record.t, 'm:' .. record.f, 'c:' .. claim }
for _, purged in ipairs(redis.call('HMGET', P .. ':purged', unpack(scopes))) do
  if purged and created <= tonumber(purged) then return 'purged' end
end
if redis.call('EXISTS', RECORD .. id) == 1 then return 'exists' end
if ARGV[12] == '1' then
  if record.p ~= '' and not block_get(record.p) then return 'orphan' end
  local total = tonumber(redis.call('HGET', P .. ':size:blocks', 'total') or '0')
  if total + record.n > tonumber(ARGV[16]) then return 'full' end
  local twin, off = block_get(name_at(record.h, 0))
  if twin then
    local names = redis.call('HGET', RECORD .. twin, 'h')
    if names and overlap(names, off, record.h, 0) == record.n then return 'twin' end
  end
end
redis.call('HSET', RECORD .. id, 't', record.t, 'f', record.f, 'b', int(record.b), 'd', int(record.d), 'p', record.p,
  'k', record.k, 'h', record.h, 'n', int(record.n), 'm', ARGV[14])
for first = 0, record.n - 1, BATCH do
  local pairs_, names = {}, {}
  for i = first, math.min(first + BATCH, record.n) - 1 do
    local name = name_at(record.h, i)
    names[#names + 1] = name
    pairs_[#pairs_ + 1] = BLOCK .. name
    pairs_[#pairs_ + 1] = id .. struct.pack('<I2', i)
  end
  redis.call('MSET', unpack(pairs_))
  if record.k == 'paged' then
    for i, gone in ipairs(redis.call('HMGET', P .. ':gn:' .. claim, unpack(names))) do
      if gone then
        local blocks, used = string.match(gone, '(%d+) (%d+)')
        blocks = math.min(tonumber(blocks), record.n - first - i + 1)
        count_in_histogram('ghost', claim, ARGV[15], interval_bucket(last - tonumber(used)), blocks)
        redis.call('ZREM', P .. ':gz:' .. claim, names[i])
        redis.call('HDEL', P .. ':gn:' .. claim, names[i])
      end
    end
  end
end
redis.call('ZADD', P .. ':all', int(created), id)
claim_set(id, claim, last - record.d - (record.k == 'paged' and 0 or 1), nil, record.b)
account(record, 1)
flush()
return 'stored'
