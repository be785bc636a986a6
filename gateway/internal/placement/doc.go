// Package placement says which device of a rig runs which part of a model, and how fast that is predicted to be.
//
// A Rig describes hosts, their devices and the links between them, measured (package probe) or taken from a table of
// cards. A Model is what a plan needs of a file: bytes and products of each layer. Search goes through the layouts and
// returns the one with the shortest time for a stated request. Nothing here opens an engine or a connection.
//
// Two rules hold for every rig, and tests check them: more memory or a faster link never gives a slower plan, and no
// device holds more than its free memory.
package placement
