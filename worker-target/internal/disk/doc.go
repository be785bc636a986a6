// Package disk keeps states of prompts in files, so that a restarted worker does not read them again.
//
// A state is that of an engine's snapshot: K/V pages, recurrent state, and the rows of features that a draft needs. Its
// name is a digest of namespace (contract id and isolation key) and token ids, so a name is found from a prompt alone,
// and equal states have equal names. Two files hold it:
//
//	LENGTH-ID-PARENT.2.kv     token ids, feature rows and the pages of positions that the parent does not have whole
//	LENGTH-ID-NUMBER.2.state  the recurrent state
//
// NUMBER names the state in heartbeats (services/prefixhash), 2 is the version; files of others are deleted at the
// start. The parent is the longest state in the folder that the prompt begins with; pages below it are read from its
// file and those of its ancestors. So states of one conversation share their pages, and one that has descendants can
// lose its recurrent state, which is most of a file, and keep its pages for them. Pages that the engine has released,
// because no later row reads them (engine.SnapshotLayout.FirstPage), are neither written nor read.
//
// A file begins with what it holds, its token ids, and a CRC-32C of every chunk of what follows, all under one CRC-32C.
// It is written under another name, synced and renamed: it is there whole or not at all. Data is used only if its
// checksum is right, and the ids are compared one by one. A file that is damaged is deleted with all that depends on
// it, counted, and the prompt is read from its first token. Chunks are read from the engine and written to it one by
// one, so no state has to fit into memory; their checksums are the engine's own, from its memory and back.
//
// The index is built from the names of files, in the background, and is complete milliseconds after the start. When the
// budget is exceeded, states are removed by value (package eviction), but never while in use.
//
// A folder belongs to one process, which locks it; the lock ends with the process, however it ends. Another process
// with the same setting takes the next subfolder, with a budget of its own, first one that it or another worker of the
// same model has left.
//
// Files go through the page cache. Direct reads of a file that is not in it are 1.4 to 2.5 times as fast (1.3 to 1.6
// against 0.6 to 1.0 GB/s in chunks of 1 MiB on a virtual disk, writes 1.1 to 1.5 times) and take a fifth of the
// processor time, but a worker that is restarted mostly finds its files in the page cache, and the kernel's read-ahead
// overlaps with the copy into the engine, which is what a small model waits for.
//
// Locking: mu guards the index. Files are read and written without it, those of pinned states only; they are removed
// with it held.
package disk
