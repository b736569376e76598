"The five papers, table by table: what was printed, what is measured, what holds"
