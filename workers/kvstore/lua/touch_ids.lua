-- ARGV: claim, now, ids of sidecars...: use these extents (a sidecar is one step deeper than its block). Returns how many exist.
local claim, now, added, found = ARGV[1], tonumber(ARGV[2]), 0, 0
for i = 3, #ARGV do
  local record = redis.call('HMGET', RECORD .. ARGV[i], 'd', 'b')
  if record[1] then
    found = found + 1
    if not redis.call('ZSCORE', claim_key(claim), ARGV[i]) then added = added + tonumber(record[2]) end
    redis.call('ZADD', claim_key(claim), 'GT', int(now - tonumber(record[1]) - 1), ARGV[i])
  end
end
if added > 0 then
  redis.call('HINCRBY', P .. ':size:claims', claim, int(added))
  redis.call('SADD', P .. ':classes', claim)
end
return found
