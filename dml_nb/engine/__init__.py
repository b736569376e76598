"The fast ways behind `PairLoss`: checked input, blocks, memory, what autograd and compilers see"
