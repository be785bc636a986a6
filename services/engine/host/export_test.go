package host

import "time"

// SetHangLimit changes the limit of processes that are opened from now on.
func (h *Host) SetHangLimit(limit time.Duration) { h.cfg.HangLimit = limit }
