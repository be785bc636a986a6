// Package preempt decides which of the running requests gives up its memory when the engine has none left.
//
// A request is a member of a Pool from its arrival to its end. Members have a rank: the higher priority first, among
// equals the earlier arrival. A member whose step the engine refuses for want of memory asks the pool (Want). The
// running member of the lowest rank is then preempted: another one parks before its next step, and the asker waits for
// that; when it is the asker itself, it parks. A member that runs alone gets the engine's refusal.
//
//	outside ──Enter──▶ running ──Park──▶ parked ──Wait──▶ trying ──Resumed──▶ running ──Leave──▶
//	                      └────Away────▶ away ───Wait──────┘ └──Want: refused──▶ parked
//
// How a member parks and comes back is decided by package decode. Parked members come back one at a time, the best rank
// first, once a running member has left or gone away: memory that was released for a member is not taken back from it.
// Newcomers wait for parked members of a better rank.
//
// # No deadlock, no starvation, no thrash
//
// Every asker ranks above the member that it waits for, so the waits have no cycle, and the running member of the best
// rank is never parked. When no member runs, the best parked one comes back. A parked member ranks below all running
// members, except newcomers that entered just before, which end at some time; newcomers of a lower rank wait. So the
// earliest member of the highest priority always comes next. A member comes back at most once for every one that
// leaves, except when nobody runs.
package preempt
