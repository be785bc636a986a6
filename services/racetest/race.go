//go:build race

package racetest

// Enabled says whether the race detector watches this program.
const Enabled = true
