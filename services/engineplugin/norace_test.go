//go:build !race

package engineplugin_test

const raceEnabled = false
