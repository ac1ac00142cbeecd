-- ARGV: chain, claim, now, first block whose reuse is recorded, day, prompt blocks, file times before this are stale.
-- Returns {blocks found, ids of extents whose file time is to be renewed...}.
local chain, claim, now, from = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local day, prompt, stale = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local renew = { 0 }
renew[1] = walk(chain, { 'h', 'd', 'b', 'm', 'c:' .. claim }, function(id, _, blocks, i, record)
  local depth, old = tonumber(record[2]), tonumber(record[5] or nil)
  if old then
    local reused = i + blocks - math.max(i, from)
    if reused > 0 then count_in_histogram('reuse', claim, day, interval_bucket(now - old - depth), reused) end
  end
  if not old or now - depth > old then claim_set(id, claim, now - depth, old, tonumber(record[3])) end
  if tonumber(record[4]) < stale then
    redis.call('HSET', RECORD .. id, 'm', int(now))
    renew[#renew + 1] = id
  end
end)
if prompt > 0 then
  count_in_histogram('prompt', claim, day, 'blocks', prompt)
  count_in_histogram('prompt', claim, day, 'hit', renew[1])
end
flush()
return renew
