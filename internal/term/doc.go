// Package term writes text for people: a live table on a terminal, plain lines
// elsewhere.
//
// The rules of everything that it prints:
//
//   - One goroutine, that of a [Screen], writes to the terminal. Callers hand it
//     rows and lines and are never blocked by a terminal that was stopped.
//   - Text is a [Line] of [Cell] values. The words of a cell pass reason.Line
//     when they are written, so that nothing which came from a node can move
//     the cursor, colour the screen or start a second line.
//   - Colours and cursor movements go to terminals only. NO_COLOR (any value
//     that is not empty) takes the colours away, TERM=dumb or an empty TERM both.
//   - Every frame is one write, and leaves the cursor visible, at the beginning
//     of the line below the frame, with line wrapping on. Whoever ends the
//     program, and however, finds a sane terminal; there is nothing to restore.
//   - A frame is never higher than the terminal, and is drawn at most ten times
//     a second, only when it says something new.
package term
