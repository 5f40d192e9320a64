// Elements and bytes of one block of each format. `cargo xtask ptx` writes this file.
#ifndef BLOCKS_CUH
#define BLOCKS_CUH

#define Q4_0_ELEMS 32
#define Q4_0_BYTES 18
#define Q4_1_ELEMS 32
#define Q4_1_BYTES 20
#define Q5_0_ELEMS 32
#define Q5_0_BYTES 22
#define Q5_1_ELEMS 32
#define Q5_1_BYTES 24
#define Q8_0_ELEMS 32
#define Q8_0_BYTES 34
#define Q2_K_ELEMS 256
#define Q2_K_BYTES 84
#define Q3_K_ELEMS 256
#define Q3_K_BYTES 110
#define Q4_K_ELEMS 256
#define Q4_K_BYTES 144
#define Q5_K_ELEMS 256
#define Q5_K_BYTES 176
#define Q6_K_ELEMS 256
#define Q6_K_BYTES 210
#define TQ2_0_ELEMS 256
#define TQ2_0_BYTES 66

#endif
