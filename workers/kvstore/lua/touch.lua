-- ARGV: chain, claim, now, first block whose reuse is recorded, day, prompt blocks, file times before this are stale.
-- Returns {blocks found, ids of extents whose file time is to be renewed...}.
local chain, claim, now, from = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local day, prompt, stale = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local renew = { 0 }
local key = claim_key(claim)
local added = 0
renew[1] = walk(chain, function(id, _, count, i, record)
  local depth = tonumber(record[2])
  local old = redis.call('ZSCORE', key, id)
  if old then
    local blocks = i + count - math.max(i, from)
    if blocks > 0 then
      count_in_histogram('reuse', claim, day, interval_bucket(now - tonumber(old) - depth), int(blocks))
    end
  else
    added = added + tonumber(record[3])
  end
  redis.call('ZADD', key, 'GT', int(now - depth), id)
  if tonumber(record[4]) < stale then
    redis.call('HSET', RECORD .. id, 'm', int(now))
    renew[#renew + 1] = id
  end
end)
if added > 0 then
  redis.call('HINCRBY', P .. ':size:claims', claim, int(added))
  redis.call('SADD', P .. ':classes', claim)
end
if prompt > 0 then
  count_in_histogram('prompt', claim, day, 'blocks', int(prompt))
  count_in_histogram('prompt', claim, day, 'hit', int(renew[1]))
end
return renew
