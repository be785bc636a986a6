//go:build !race

package shmstream

const raceEnabled = false
