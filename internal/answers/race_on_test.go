//go:build race

package answers

// raceDetector says that the test was built with -race.
const raceDetector = true
