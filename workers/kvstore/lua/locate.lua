-- ARGV: names, one after the other. Like lookup, but every name for itself: an empty list where there is none.
local claims = redis.call('SMEMBERS', P .. ':classes')
local out = { redis.call('HGET', P .. ':policy', 'version') or '0', redis.call('HGET', P .. ':meta', 'store') or '' }
for i = 0, #ARGV[1] / 16 - 1 do
  local id, off = block_get(string.sub(ARGV[1], i * 16 + 1, i * 16 + 16))
  if id and redis.call('EXISTS', RECORD .. id) == 1 then
    out[#out + 1] = { id, off, 1, claims_of(id, claims) }
  else
    out[#out + 1] = {}
  end
end
return out
