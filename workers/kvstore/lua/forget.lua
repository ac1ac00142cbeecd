-- ARGV: reason, now, day, ids...: extents that must not be served any more, whoever claims them. Returns those that were known.
local out = {}
for i = 4, #ARGV do
  local record = record_get(ARGV[i])
  if record then
    local first = claimed(record) or ''
    local claim = first
    while claim and claim ~= '' do
      claim_drop(ARGV[i], claim, record)
      claim = claimed(record)
    end
    destroy(ARGV[i], record, ARGV[1], first, ARGV[2], ARGV[3])
    out[#out + 1] = ARGV[i]
  end
end
flush()
return out
