// The table of cells of package compute for C and CUDA. Made from cell.go by
// go test ./compute -run TestHeader -update

#ifndef RONDO_CELLS_H
#define RONDO_CELLS_H

// CELL(name, gates, states, kept, peepholes) of each, in the order of their numbers.
#define RONDO_CELLS(CELL) \
    CELL(RNN, 1, 1, 0, 0) \
    CELL(RNN_RELU, 1, 1, 0, 0) \
    CELL(GRU, 3, 1, 1, 0) \
    CELL(GRU_RESET_BEFORE, 3, 1, 1, 0) \
    CELL(LSTM, 4, 2, 0, 0) \
    CELL(LSTM_PEEPHOLE, 4, 2, 0, 3) \
    CELL(MGU, 2, 1, 1, 0) \
    CELL(LSTM_COUPLED, 3, 2, 0, 0) \
    CELL(LSTM_NO_FORGET, 3, 2, 0, 0) \
    CELL(LEAKY_LEARNED, 1, 1, 1, 1) \
    CELL(LEAKY, 1, 1, 0, 0) \
    CELL(MIN_GRU, 2, 1, 0, 0) \
    CELL(CLOCKWORK, 1, 2, 0, 0)

// RNN is a cell's number, RNN_GATES its gates.
#define RONDO_CELL(name, gates, states, kept, peepholes) name,
#define RONDO_GATES(name, gates, states, kept, peepholes) name##_GATES = gates,
enum { RONDO_CELLS(RONDO_CELL) CELLS };
enum { RONDO_CELLS(RONDO_GATES) };

#endif
