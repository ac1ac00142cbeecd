-- ARGV: names, one after the other. Like lookup, but every name for itself: an empty list where there is none.
local out = { redis.call('HGET', P .. ':policy', 'version') or '0', redis.call('HGET', P .. ':meta', 'store') or '' }
for i = 0, #ARGV[1] / 16 - 1 do
  local id, off = block_get(name_at(ARGV[1], i))
  local record = id and record_get(id)
  if record then
    local held = {}
    for field, value in pairs(record) do
      if string.sub(field, 1, 2) == 'c:' then
        held[#held + 1] = string.sub(field, 3)
        held[#held + 1] = value
      end
    end
    out[#out + 1] = { id, off, 1, held }
  else
    out[#out + 1] = {}
  end
end
return out
