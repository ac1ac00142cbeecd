-- ARGV: claim, now, name of the tip. Claim the extents from the tip up to the root; returns their ids, none without the tip.
local claim, now, name = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local out = {}
while name ~= '' and #out < 100000 do
  local id = block_get(name)
  local record = id and record_get(id)
  if not record then break end
  claim_set(id, claim, now - record.d, record['c:' .. claim], record.b)
  out[#out + 1] = id
  name = record.p
end
flush()
return out
