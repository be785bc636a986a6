// Package config turns flags, environment and a YAML file into the structs that commands read.
//
// Sources, strongest first: flag, environment variable TANDEM_<FLAG>, file given by --config, default in the struct
// tag. Every program of the project parses its command line with Parse, so that they all answer alike: an unknown flag,
// a bad value or an unknown key ends the program with status 2 and a message that names it.
package config
