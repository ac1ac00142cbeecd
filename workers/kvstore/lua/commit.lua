-- ARGV: id, claim, last use, created, salt id, fingerprint, bytes, depth, parent name, kind, names, new writing ('1') or
-- rebuilding ('0'), store id, file time, day, most blocks. Returns one word; only 'stored' and 'exists' keep the file.
local id, claim, last, created = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local record = { t = ARGV[5], f = ARGV[6], b = tonumber(ARGV[7]), d = tonumber(ARGV[8]), p = ARGV[9], k = ARGV[10], h = ARGV[11] }
record.n = #record.h / 16
if redis.call('HGET', P .. ':meta', 'store') ~= ARGV[13] then return 'lost' end
for _, scope in ipairs({ 't:' .. record.t, 'm:' .. record.f, 'c:' .. claim, 'all' }) do
  local purged = redis.call('HGET', P .. ':purged', scope)
  if purged and created <= tonumber(purged) then return 'purged' end
end
if redis.call('EXISTS', RECORD .. id) == 1 then return 'exists' end
if ARGV[12] == '1' then
  if record.p ~= '' and not block_get(record.p) then return 'orphan' end
  local total = tonumber(redis.call('HGET', P .. ':size:blocks', 'total') or '0')
  if total + record.n > tonumber(ARGV[16]) then return 'full' end
  local twin, off = block_get(string.sub(record.h, 1, 16))
  if twin then
    local names = redis.call('HGET', RECORD .. twin, 'h')
    if names and overlap(names, off, record.h, 0) == record.n then return 'twin' end
  end
end
redis.call('HSET', RECORD .. id, 't', record.t, 'f', record.f, 'b', int(record.b), 'd', int(record.d), 'p', record.p,
  'k', record.k, 'h', record.h, 'n', int(record.n), 'm', ARGV[14])
for i = 0, record.n - 1 do
  local name = string.sub(record.h, i * 16 + 1, i * 16 + 16)
  redis.call('HSET', P .. ':b:' .. string.sub(name, 1, 2), string.sub(name, 3), id .. struct.pack('<I2', i))
  local gone = record.k == 'paged' and redis.call('ZSCORE', P .. ':gz:' .. claim, name)
  if gone then
    local blocks = math.min(tonumber(redis.call('HGET', P .. ':gn:' .. claim, name) or '0'), record.n - i)
    count_in_histogram('ghost', claim, ARGV[15], interval_bucket(last - tonumber(gone)), int(blocks))
    redis.call('ZREM', P .. ':gz:' .. claim, name)
    redis.call('HDEL', P .. ':gn:' .. claim, name)
  end
end
redis.call('ZADD', P .. ':all', int(created), id)
redis.call('ZADD', claim_key(claim), 'GT', int(last - record.d - (record.k == 'paged' and 0 or 1)), id)
redis.call('SADD', P .. ':classes', claim)
redis.call('HINCRBY', P .. ':size:claims', claim, int(record.b))
account(record, 1)
return 'stored'
