// Package shmem maps memory files that processes of one host share. The maker tells its peer a name over a connection
// that both trust; the peer takes the file for what the name says only if it is sealed, has the expected size and holds
// the name's random number.
package shmem

// NonceBytes at the beginning of a file hold its random number. They are not to be written to.
const NonceBytes = 16
