-- ARGV: claim, now, name of the tip. Claim the extents from the tip up to the root; returns their ids, none without the tip.
local claim, now, name = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local out = {}
while name ~= '' and #out < 100000 do
  local id = block_get(name)
  local record = id and record_get(id)
  if not record then break end
  if redis.call('ZADD', claim_key(claim), int(now - record.d), id) == 1 then
    redis.call('HINCRBY', P .. ':size:claims', claim, int(record.b))
  end
  out[#out + 1] = id
  name = record.p
end
if #out > 0 then redis.call('SADD', P .. ':classes', claim) end
return out
