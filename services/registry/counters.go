package registry

import "strings"

// Counters lists the counters that workers send in heartbeats, with what each counts since the worker's start. Names
// that end in _seconds are times, all others are numbers of things. The gateway shows each as tandem_worker_NAME_total,
// those of the prefix cache as tandem_prefix_cache_NAME_total, and no others, so that a worker cannot make up series.
var Counters = map[string]string{
	"requests":           "Requests of the worker that ended.",
	"requests_failed":    "Requests that ended with an error.",
	"requests_cancelled": "Requests that their client left.",
	"requests_degraded":  "Requests that lost their draft on the way.",

	"prompt_tokens":    "Prompt tokens that the target read.",
	"generated_tokens": "Tokens that the target sent.",
	"prefill_seconds":  "Time in which the target read prompts.",
	"decode_seconds":   "Time in which the target decoded, from the first to the last token of requests.",

	"verify_steps":           "Steps of the target that verified a proposal.",
	"plain_steps":            "Steps of the target without a proposal.",
	"verify_seconds":         "Time of steps of the target.",
	"draft_wait_seconds":     "Time in which the target waited for proposals.",
	"drafted_tokens":         "Tokens that were proposed to the target.",
	"accepted_tokens":        "Proposed tokens that the target accepted.",
	"lookup_drafted_tokens":  "Tokens that prompt lookup proposed.",
	"lookup_accepted_tokens": "Tokens of prompt lookup that the target accepted.",
	"proposals_late":         "Proposals that came too late for their round.",
	"proposals_malformed":    "Proposals that no draft may make.",
	"drafts_refused":         "Drafts that do not fit the target.",

	"graph_runs":     "Submissions of the target's engine to a GPU that ran as a graph.",
	"graph_captures": "Of those, submissions that captured their graph first.",
	"list_runs":      "Submissions of the target's engine to a GPU that ran launch by launch.",

	"prefix_cache_lookups":   "Prompts that were looked up in the prefix cache.",
	"prefix_cache_hits":      "Prompts whose begin was restored from the prefix cache.",
	"prefix_cache_tokens":    "Prompt tokens that were restored from the prefix cache and not read.",
	"prefix_cache_evictions": "States that the prefix cache gave up for others, or for requests in need of memory.",
	"prefix_cache_refusals":  "States that the prefix cache had no room for.",
	"prefix_cache_failures":  "States that could not be restored; the prompt was read instead.",

	"read_ahead_tokens":        "Tokens of expected prompts that were read while there was no request.",
	"read_ahead_hits":          "Requests that began with a state which was read ahead, once for each state.",
	"read_ahead_used_tokens":   "Tokens that were read ahead for those.",
	"read_ahead_wasted_tokens": "Tokens that were read ahead for states which were given up before a request asked for them.",
	"read_ahead_stops":         "Readings ahead that a request stopped.",

	"preemptions":         "Times that a request gave up its memory because the engine had none left.",
	"resumed_from_memory": "Requests that gave up their memory and went on from a state in host memory.",
	"resumed_by_reading":  "Requests that gave up their memory and went on after reading their text again.",
	"slow_readers":        "Times that a request gave up its memory and its slot because its client did not read.",
	"tokens_read_again":   "Tokens of prompts and answers that requests read again after they gave up their memory.",

	"prefix_cache_disk_lookups":   "Prompts for which a state on disk was looked for.",
	"prefix_cache_disk_hits":      "Prompts for which a state was read from disk.",
	"prefix_cache_disk_tokens":    "Prompt tokens of states that were read from disk.",
	"prefix_cache_disk_writes":    "States that were written to disk.",
	"prefix_cache_disk_refusals":  "States that were not written: no room, a full disk, or too many waited.",
	"prefix_cache_disk_evictions": "States on disk that were deleted for others.",
	"prefix_cache_disk_damaged":   "Damaged files of states, which were deleted; the prompt was read instead.",

	"peer_fetches":                "States of prompts that the target fetched from other workers.",
	"peer_fetched_tokens":         "Prompt tokens that the target did not read because it fetched their state.",
	"peer_fetched_bytes":          "Bytes of states that the target received, those included that it gave up.",
	"peer_fetch_seconds":          "Time in which the target received states.",
	"peer_fetches_skipped":        "States that another worker held and that were expected to be read sooner than fetched.",
	"peer_fetches_failed_missing": "States that the other worker did not hold any more; the prompt was read instead.",
	"peer_fetches_failed_refused": "States that the other worker refused: another contract id, or it sends none.",
	"peer_fetches_failed_busy":    "States that the other worker did not send because it was sending enough.",
	"peer_fetches_failed_lost":    "States whose sender did not answer or left in the middle.",
	"peer_fetches_failed_slow":    "Fetches that were given up because reading the prompt was faster.",
	"peer_fetches_failed_damaged": "Fetched states that were not what was asked for; the prompt was read instead.",
	"peer_fetches_failed_local":   "Fetched states that the target's own engine had no room for.",
	"peer_sends":                  "States of prompts that the target sent to other workers.",
	"peer_sent_tokens":            "Prompt tokens that other workers did not read because of those.",
	"peer_sent_bytes":             "Bytes of states that the target sent.",
	"peer_sends_failed":           "States that were not sent to their end.",

	"orphaned_sequences_freed": "Sequences of the engine that belonged to no request any more and were freed.",

	"engine_parks": "Times that the engine was closed because nobody used it.",

	"messages":          "Messages that the draft got from targets.",
	"proposals":         "Proposals that the draft made.",
	"proposal_passes":   "Passes of the draft's engine that made proposals; several proposals may share one.",
	"proposals_skipped": "Proposals that the draft left out because a newer one was asked for.",
	"proposed_nodes":    "Nodes of the trees that the draft proposed.",
	"engine_seconds":    "Time of the draft's engine.",
	"append_seconds":    "Time in which the draft's engine read features.",

	"scored_tokens": "Prompt tokens that the scorer read.",
	"kept_tokens":   "Prompt tokens that compression kept.",
	"score_seconds": "Time in which the scorer worked.",
}

// Gauges lists what workers send beside counters and what may fall again. The gateway names each like a counter,
// without _total.
var Gauges = map[string]string{
	"device_memory_bytes":       "Memory of the device that counts towards the limit of the worker's engine.",
	"device_memory_limit_bytes": "Memory of the device that the worker's engine may use.",
	"engine_parked":             "1 while the worker has no engine because nobody uses it, else 0.",
	"requests_parked":           "Requests that have given up their memory, or wait for some, now.",
	"prefix_cache_entries":      "States of prompts in the prefix cache.",
	"prefix_cache_disk_states":  "States of prompts on disk.",
	"prefix_cache_disk_bytes":   "Bytes of files of states.",
	"prefix_cache_bytes":        "Memory of the prefix cache: states, their K/V rows, each once, and features for drafts.",
}

// MetricName is the name of the gateway's instrument for a counter of a worker.
func MetricName(counter string) string {
	if rest, ok := strings.CutPrefix(counter, "prefix_cache_"); ok {
		return "tandem.prefix_cache." + rest
	}
	return "tandem.worker." + counter
}
